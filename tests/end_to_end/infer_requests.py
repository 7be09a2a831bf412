# SPDX-License-Identifier: Apache-2.0
"""KServe v2 requests through tritonclient, as its users write them."""

import numpy as np
import tritonclient.grpc as triton

# KServe's names of NumPy's types.
DATATYPES = {
    np.dtype(np.float64): "FP64",
    np.dtype(np.float32): "FP32",
    np.dtype(np.float16): "FP16",
    np.dtype(np.int8): "INT8",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.int32): "INT32",
}


def tensor(name, array, datatype=None, **parameters):
    """An input with its parameters beside it, because tritonclient has no call for them."""
    made = triton.InferInput(name, list(array.shape), datatype or DATATYPES[array.dtype])
    made.set_data_from_numpy(np.ascontiguousarray(array))
    for key, value in parameters.items():
        chosen = made._input.parameters[key]
        if isinstance(value, str):
            chosen.string_param = value
        else:
            chosen.int64_param = value
    return made


def infer(client, model="gemm", parameters=None, **inputs):
    """The answer to inputs that are arrays or results of `tensor`."""
    made = [
        value if isinstance(value, triton.InferInput) else tensor(name, value)
        for name, value in inputs.items()
    ]
    return client.infer(model, made, parameters=parameters, client_timeout=60)


def parameters_of(answer):
    """The parameters of an answer, by name."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in answer.get_response().parameters.items()
    }
