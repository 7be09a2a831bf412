# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio; its calls are those of `gemmd.Client`, to be awaited.

::

    async with gemmd.aio.Client("127.0.0.1:8470") as client:
        d = await client.matmul(a, b)
"""

from gemmd.aio.client import Client
from gemmd.aio.remote import RemoteTensor
from gemmd.aio.stream import Stream

__all__ = ["Client", "RemoteTensor", "Stream"]
