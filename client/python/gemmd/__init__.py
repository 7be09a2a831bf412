# SPDX-License-Identifier: Apache-2.0
"""Matrix products on a gemmd server, for NumPy arrays.

::

    import gemmd, numpy as np

    client = gemmd.Client("127.0.0.1:8470")
    d = client.matmul(np.ones((300, 200), np.float32), np.ones((200, 100), np.float32))
"""

from gemmd import aio
from gemmd.blocks import BlockScale
from gemmd.channel import ClientOptions
from gemmd.client import Client
from gemmd.errors import (
    Aborted,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from gemmd.memory import keep_memory
from gemmd.part import TensorView
from gemmd.prepare import QuantizedMatrix, SparseMatrix, pack24, quantize
from gemmd.product import Product, ProductOptions
from gemmd.remote import RemoteTensor
from gemmd.requests import ChainOptions, KeepOptions, PutOptions
from gemmd.stream import Stream

__all__ = [
    "Aborted",
    "BlockScale",
    "Cancelled",
    "ChainOptions",
    "Client",
    "ClientOptions",
    "DataLoss",
    "DeadlineExceeded",
    "Error",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "KeepOptions",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "Product",
    "ProductOptions",
    "PutOptions",
    "QuantizedMatrix",
    "RemoteTensor",
    "ResourceExhausted",
    "SparseMatrix",
    "Stream",
    "TensorView",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "aio",
    "keep_memory",
    "pack24",
    "quantize",
]
