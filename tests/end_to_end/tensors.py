# SPDX-License-Identifier: Apache-2.0
"""A client of gemmd.v1.Tensors over the generated stubs: a session, uploads message by message, and
downloads."""

import hashlib
import queue

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc, resident_pb2, resident_pb2_grpc, tensors_pb2

DEADLINE_S = 60
# A stream is open while its test waits for others, and each of those waits has its own limit.
STREAM_S = 600
MIB = 1 << 20

# A daemon with little room for tensors.
FLAGS = ["--devices=cpu,sim:sm_90", "--tensor-bytes=256MiB:64MiB"]


def refusal(call, *arguments, **keywords):
    """The code and the text with which a call is refused."""
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **keywords)
    return raised.value.code(), raised.value.details()


def bytes_spec(size, matrices=None):
    """The specification of a row of `size` bytes."""
    return resident_pb2.TensorSpec(
        type=tensors_pb2.ELEMENT_TYPE_U8, rows=1, columns=size, matrices=matrices
    )


class Stream:
    """One Put stream: its requests and its answers. Answers are read on request."""

    def __init__(self, stub, metadata, timeout=STREAM_S):
        self._requests = queue.SimpleQueue()
        self.call = stub.Put(iter(self._requests.get, None), metadata=metadata, timeout=timeout)

    def send(self, **step):
        self._requests.put(resident_pb2.PutRequest(**step))
        return self

    def begin(self, spec, name="", sha256=b"", lease_ns=0, pinned=False, device=""):
        keep = tensors_pb2.NewTensor(name=name, lease_ns=lease_ns, pinned=pinned)
        self.send(begin=resident_pb2.PutBegin(spec=spec, keep=keep, sha256=sha256, device=device))
        return self.state()

    def join(self, upload):
        self.send(join=upload)
        return self.state()

    def chunk(self, offset, data):
        return self.send(chunk=resident_pb2.PutChunk(offset=offset, data=data))

    def state(self):
        answer = next(self.call)
        assert answer.WhichOneof("step") == "state", answer
        return answer.state

    def tensor(self):
        """The last answer, after which the stream ends by itself."""
        answer = next(self.call)
        assert answer.WhichOneof("step") == "tensor", answer
        assert list(self.call) == []
        self.close()
        return answer.tensor

    def close(self):
        """Closes the sending side."""
        self._requests.put(None)
        return self

    def break_off(self):
        self.call.cancel()
        self.close()

    def error(self):
        """The error with which the stream ends."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details()
        finally:
            self.close()
        raise AssertionError("the stream ended well")


class Session:
    """A session on a channel, with its tensors."""

    def __init__(self, channel, token="", credentials=()):
        self.channel = channel
        self.stub = resident_pb2_grpc.TensorsStub(channel)
        self.gemm = gemm_pb2_grpc.GemmStub(channel)
        self.stream = self.stub.OpenSession(
            resident_pb2.OpenSessionRequest(token=token), metadata=list(credentials)
        )
        self.opened = next(self.stream)
        self.token = self.opened.token
        self.own_metadata = [("gemmd-session", self.token)]
        self.metadata = [*self.own_metadata, *credentials]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.stream.cancel()

    def put_stream(self, **keywords):
        return Stream(self.stub, self.metadata, **keywords)

    def put(self, data, spec=None, hashed=True, chunk=MIB, **keep):
        """Uploads bytes over one stream. Returns the server's description of the tensor."""
        stream = self.put_stream()
        sha256 = hashlib.sha256(data).digest() if hashed else b""
        try:
            state = stream.begin(spec or bytes_spec(len(data)), sha256=sha256, **keep)
            for missing in state.missing:
                end = missing.offset + missing.bytes
                for offset in range(missing.offset, end, chunk):
                    stream.chunk(offset, data[offset : min(end, offset + chunk)])
            return stream.tensor()
        finally:
            stream.close()  # Otherwise gRPC keeps a thread that waits for more to send.

    def get(self, ref, **part):
        """The server's description of a tensor, and its bytes."""
        request = resident_pb2.GetRequest(tensor=ref, **part)
        answers = self.stub.Get(request, metadata=self.metadata, timeout=DEADLINE_S)
        info = next(answers).tensor
        data = bytearray()
        for answer in answers:
            assert answer.chunk.offset == part.get("offset", 0) + len(data)
            data += answer.chunk.data
        return info, bytes(data)

    def list(self, pattern=""):
        request = resident_pb2.ListTensorsRequest(pattern=pattern)
        return self.stub.List(request, metadata=self.metadata, timeout=DEADLINE_S)

    def settled(self):
        """The listing once only tensors take room: an upload's own room is released after its last
        answer."""

        def listing():
            told = self.list()
            kept = sum(tensor.kept_bytes for tensor in told.tensors)
            return told if told.session_bytes == kept else None

        return wait_until(listing, DEADLINE_S, "the account has the tensors alone")

    def describe(self, ref):
        return self.stub.Describe(ref, metadata=self.metadata, timeout=DEADLINE_S)

    def delete(self, ref):
        return self.stub.Delete(ref, metadata=self.metadata, timeout=DEADLINE_S)

    def keep_alive(self, ref, **changes):
        request = resident_pb2.KeepAliveRequest(tensor=ref, **changes)
        return self.stub.KeepAlive(request, metadata=self.metadata, timeout=DEADLINE_S)

    def multiply(self, request):
        return self.gemm.Multiply(request, metadata=self.metadata, timeout=DEADLINE_S)


def by_name(name):
    return tensors_pb2.TensorRef(name=name)


def by_handle(tensor):
    return tensors_pb2.TensorRef(handle=tensor.handle)
