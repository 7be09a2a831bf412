# SPDX-License-Identifier: Apache-2.0
"""Arrays as tensors, and requests whose operands are tensors."""

import numpy as np
from elements import BY_NUMBER, ELEMENTS, ROW_MAJOR
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from tensors import by_handle


def spec_of(array, **fields):
    """The specification of a batch x rows x columns array."""
    element = next(e for e in ELEMENTS.values() if e.dtype == array.dtype.type and e.name != "tf32")
    matrices, rows, columns = array.shape
    return resident_pb2.TensorSpec(
        type=element.number, rows=rows, columns=columns, matrices=matrices, **fields
    )


def put_array(session, array, **keep):
    scale = keep.pop("scale", None)
    spec = spec_of(array, scale=tensors_pb2.Scale(values=scale or []))
    return session.put(array.tobytes(), spec=spec, **keep)


def part(ref, **fields):
    return tensors_pb2.TensorPart(tensor=ref, **fields)


def operand(ref, transpose=False, **fields):
    return tensors_pb2.Operand(tensor=part(ref, **fields), transpose=transpose)


def integers(rng, *shape, dtype=np.float32):
    return np.array([rng.randint(-4, 4) for _ in range(int(np.prod(shape)))], dtype).reshape(shape)


def product(m, n, k, a, b, batch=1, **fields):
    return gemm_pb2.MultiplyRequest(m=m, n=n, k=k, a=a, b=b, batch=batch, **fields)


def array_of(session, info):
    _, data = session.get(by_handle(info))
    spec = info.spec
    assert spec.order == ROW_MAJOR and spec.leading_dimension == spec.columns
    dtype = BY_NUMBER[spec.type].dtype
    return np.frombuffer(data, dtype).reshape(spec.matrices, spec.rows, spec.columns)
