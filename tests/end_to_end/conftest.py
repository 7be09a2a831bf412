# SPDX-License-Identifier: Apache-2.0
from fixtures import *  # noqa: F403
