# SPDX-License-Identifier: Apache-2.0
"""The client's RPC methods, and how to serialize and parse their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gemmd.joint import parse_joint, serialize_joint
from gemmd.product import Answer, Request
from gemmd.transfer import parse_get, serialize_put
from gemmd.v1 import registry_pb2, resident_pb2, statistics_pb2, tensors_pb2


class Method(NamedTuple):
    """One RPC method."""

    path: str
    serialize: Callable[[Any], bytes]
    parse: Callable[[bytes], Any]


def _method(service: str, name: str, request: Any, response: Any) -> Method:
    return Method(f"/gemmd.v1.{service}/{name}", request.SerializeToString, response.FromString)


MULTIPLY = Method("/gemmd.v1.Gemm/Multiply", Request.serialize, Answer.parse)
MULTIPLY_STREAM = Method("/gemmd.v1.Gemm/MultiplyStream", serialize_joint, parse_joint)
LIST_DEVICES = _method(
    "Registry", "ListDevices", registry_pb2.ListDevicesRequest, registry_pb2.ListDevicesResponse
)
LIST_KERNELS = _method(
    "Registry", "ListKernels", registry_pb2.ListKernelsRequest, registry_pb2.ListKernelsResponse
)
EXPLAIN = _method("Registry", "Explain", registry_pb2.ExplainRequest, registry_pb2.ExplainResponse)
SERVER_INFO = _method(
    "Registry",
    "GetServerInfo",
    registry_pb2.GetServerInfoRequest,
    registry_pb2.GetServerInfoResponse,
)
STATISTICS = _method(
    "Registry",
    "GetStatistics",
    statistics_pb2.GetStatisticsRequest,
    statistics_pb2.GetStatisticsResponse,
)
OPEN_SESSION = _method(
    "Tensors",
    "OpenSession",
    resident_pb2.OpenSessionRequest,
    resident_pb2.OpenSessionResponse,
)
PUT = Method("/gemmd.v1.Tensors/Put", serialize_put, resident_pb2.PutResponse.FromString)
GET = Method("/gemmd.v1.Tensors/Get", resident_pb2.GetRequest.SerializeToString, parse_get)
LIST = _method("Tensors", "List", resident_pb2.ListTensorsRequest, resident_pb2.ListTensorsResponse)
DESCRIBE = _method("Tensors", "Describe", tensors_pb2.TensorRef, resident_pb2.TensorInfo)
DELETE = _method("Tensors", "Delete", tensors_pb2.TensorRef, resident_pb2.DeleteTensorResponse)
KEEP_ALIVE = _method("Tensors", "KeepAlive", resident_pb2.KeepAliveRequest, resident_pb2.TensorInfo)
COMPRESS = _method("Tensors", "Compress", resident_pb2.CompressRequest, resident_pb2.TensorInfo)
