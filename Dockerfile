# SPDX-License-Identifier: Apache-2.0
#
# Images of gemmd, from the repository's root:
#
#   docker build --target cpu  --tag gemmd:cpu .     # The daemon and gemmctl.
#   docker build --target cuda --tag gemmd:cuda .    # The same with the worker of NVIDIA GPUs.
#   docker build --target load --tag gemmload .      # The load tester.
#
# None needs a shell, root, a capability, or a root that it can write to. buildah and podman keep the
# healthcheck only with --format docker.

# The bases by version; a release pins them by digest (--build-arg DEBIAN=debian@sha256:...).
ARG DEBIAN=docker.io/library/debian:12.12-slim
ARG CUDA=nvcr.io/nvidia/cuda:13.0.1-devel-ubuntu24.04
# What the programs run on: anything with glibc 2.36 or newer, a distroless base among them.
ARG RUNTIME=docker.io/library/debian:12.12-slim

FROM ${DEBIAN} AS packages
WORKDIR /src
COPY deploy/install-packages.sh deploy/
RUN deploy/install-packages.sh build && rm -rf /var/lib/apt/lists/*
COPY . .

FROM packages AS build-cpu
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake --preset release -DGEMMD_BUILD_TESTS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON && \
    cmake --build --preset release && \
    cmake --install build/release --component runtime --strip --prefix /opt/gemmd

FROM ${CUDA} AS toolkit

# nvcc of NVIDIA's image on Debian, whose gRPC the programs are built with. The worker has the CUDA
# runtime inside, and the driver's libraries come from the host: no other CUDA library is needed.
FROM packages AS build-cuda
ARG CUDA_ARCHITECTURES=90a-real
COPY --from=toolkit /usr/local/cuda-13.0 /usr/local/cuda
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake --preset release -DGEMMD_BUILD_TESTS=OFF \
      -DCMAKE_CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES}" && \
    cmake --build --preset release && \
    cmake --install build/release --component runtime --strip --prefix /opt/gemmd

FROM ${DEBIAN} AS pick
COPY deploy/pick-programs.sh /usr/local/bin/

FROM pick AS cpu-tree
COPY --from=build-cpu /opt/gemmd /programs
RUN pick-programs.sh /programs /opt/gemmd gemmd gemmctl

FROM pick AS cuda-tree
COPY --from=build-cuda /opt/gemmd /programs
RUN pick-programs.sh /programs /opt/gemmd gemmd gemmd-worker gemmctl

FROM pick AS load-tree
COPY --from=build-cpu /opt/gemmd /programs
RUN pick-programs.sh /programs /opt/gemmd gemmload

FROM ${RUNTIME} AS load
LABEL org.opencontainers.image.title="gemmload" \
      org.opencontainers.image.description="Load tester of gemmd" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=load-tree /opt/gemmd /opt/gemmd
USER 65532:65532
ENTRYPOINT ["/opt/gemmd/bin/gemmload"]
CMD ["--help"]

FROM ${RUNTIME} AS cuda
LABEL org.opencontainers.image.title="gemmd" \
      org.opencontainers.image.description="The GEMM daemon, with GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=cuda-tree /opt/gemmd /opt/gemmd
# What NVIDIA's container runtime brings in: the driver's CUDA and management libraries.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    GEMMD_ADDRESS=127.0.0.1:8470
USER 65532:65532
EXPOSE 8470 8471
ENTRYPOINT ["/opt/gemmd/bin/gemmd"]
CMD ["--listen=[::]:8470", "--metrics-listen=0.0.0.0:8471"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/opt/gemmd/bin/gemmctl", "--timeout=3s", "health"]

# The last one, which is built where no target is named.
FROM ${RUNTIME} AS cpu
LABEL org.opencontainers.image.title="gemmd" \
      org.opencontainers.image.description="The GEMM daemon, on the CPU" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=cpu-tree /opt/gemmd /opt/gemmd
ENV GEMMD_ADDRESS=127.0.0.1:8470
USER 65532:65532
EXPOSE 8470 8471
ENTRYPOINT ["/opt/gemmd/bin/gemmd"]
CMD ["--listen=[::]:8470", "--metrics-listen=0.0.0.0:8471"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/opt/gemmd/bin/gemmctl", "--timeout=3s", "health"]
