# SPDX-License-Identifier: Apache-2.0
"""The messages and stubs of proto/gemmd/v1, which the build generates."""
