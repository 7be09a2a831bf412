# SPDX-License-Identifier: Apache-2.0
#
# Images of gemmd, from the repository's root:
#
#   docker build --target cpu  --tag gemmd:cpu .     # The daemon and gemmctl.
#   docker build --target cuda --tag gemmd:cuda .    # The same with the worker of NVIDIA GPUs.
#   docker build --target load --tag gemmload .      # The load tester.
#
# None needs a shell, root, a capability, or a root that it can write to. A release says what it is:
# --build-arg VERSION=1.2.3 --build-arg REVISION="$(git rev-parse HEAD)" --build-arg SOURCE=https://...
# --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" dates its files and its bill of materials.
# buildah and podman keep the healthcheck only with --format docker.

# The bases by version; a release pins them by digest (--build-arg DEBIAN=debian@sha256:...).
ARG DEBIAN=docker.io/library/debian:12.12-slim
ARG CUDA=nvcr.io/nvidia/cuda:13.0.1-devel-ubuntu24.04
# What the programs run on: anything with glibc 2.36 or newer, a distroless base among them.
ARG RUNTIME=docker.io/library/debian:12.12-slim
# The gRPC of the programs: `debian`, or `source` for a newer one, which takes an hour on two processors.
ARG GRPC=debian

FROM ${DEBIAN} AS grpc-debian
WORKDIR /src
COPY deploy/install-packages.sh deploy/
RUN deploy/install-packages.sh build && rm -rf /var/lib/apt/lists/*

FROM grpc-debian AS grpc-source
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
COPY deploy/build-grpc.sh deploy/
RUN --mount=type=cache,target=/root/.cache/ccache \
    deploy/build-grpc.sh /opt/grpc && rm -rf /opt/grpc/build

FROM grpc-${GRPC} AS packages
ENV CMAKE_PREFIX_PATH=/opt/grpc
COPY . .

FROM packages AS configure-cpu
RUN cmake --preset release -DGEMMD_BUILD_TESTS=OFF -DGEMMD_BUNDLE_LIBRARIES=ON \
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON

FROM configure-cpu AS build-cpu
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake --build --preset release && \
    cmake --install build/release --component runtime --strip --prefix /opt/gemmd

# Moves CUDA to a fixed path, whatever its version.
FROM ${CUDA} AS toolkit
RUN mv "$(readlink -f /usr/local/cuda)" /toolkit

# nvcc of NVIDIA's image on Debian, with whose gRPC the programs are built. The worker links the
# CUDA runtime statically, and the driver's libraries come from the host: no other CUDA library is
# needed.
FROM packages AS configure-cuda
ARG CUDA_ARCHITECTURES=90a-real
COPY --from=toolkit /toolkit /usr/local/cuda
RUN cmake --preset release -DGEMMD_BUILD_TESTS=OFF -DGEMMD_BUNDLE_LIBRARIES=ON \
    -DCMAKE_CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES}"

FROM configure-cuda AS build-cuda
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake --build --preset release && \
    cmake --install build/release --component runtime --strip --prefix /opt/gemmd

FROM ${DEBIAN} AS pick
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH}
COPY deploy/bill-of-materials.sh deploy/exploitability.sh deploy/pick-programs.sh /usr/local/bin/

FROM pick AS cpu-tree
COPY --from=build-cpu /opt/gemmd /programs
RUN pick-programs.sh /programs /opt/gemmd gemmd gemmd-host-worker gemmctl

FROM pick AS cuda-tree
COPY --from=build-cuda /opt/gemmd /programs
RUN pick-programs.sh /programs /opt/gemmd gemmd gemmd-host-worker gemmd-worker gemmctl

FROM pick AS load-tree
COPY --from=build-cpu /opt/gemmd /programs
RUN pick-programs.sh /programs /opt/gemmd gemmload

# The base of all images, then that of both daemon images.
FROM ${RUNTIME} AS program
ARG VERSION=development
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
USER 65532:65532

FROM program AS daemon
ENV GEMMD_ADDRESS=127.0.0.1:8470
EXPOSE 8470 8471
ENTRYPOINT ["/opt/gemmd/bin/gemmd"]
# The container has its own network: whoever publishes the port decides who can reach it.
CMD ["--listen=[::]:8470", "--insecure-allow-remote", "--metrics-listen=[::]:8471"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/opt/gemmd/bin/gemmctl", "--timeout=3s", "health"]

FROM program AS load
LABEL org.opencontainers.image.title="gemmload" \
      org.opencontainers.image.description="Load tester of gemmd"
COPY --from=load-tree /opt/gemmd /opt/gemmd
ENTRYPOINT ["/opt/gemmd/bin/gemmload"]
CMD ["--help"]

FROM daemon AS cuda
LABEL org.opencontainers.image.title="gemmd" \
      org.opencontainers.image.description="The GEMM daemon, with GPUs"
# Requested from NVIDIA's container runtime: the driver's CUDA and management libraries.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-tree /opt/gemmd /opt/gemmd

# The last stage is built if no target is named.
FROM daemon AS cpu
LABEL org.opencontainers.image.title="gemmd" \
      org.opencontainers.image.description="The GEMM daemon, on the CPU"
COPY --from=cpu-tree /opt/gemmd /opt/gemmd
