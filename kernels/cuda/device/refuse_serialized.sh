#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a compiler, and fails where ptxas says that it makes products of warpgroups wait for each
# other (C7510 and its neighbours): it calls that information, which -Werror lets pass.
said=$("$@" 2>&1)
code=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
case $said in
  *"wgmma.mma_async instructions are serialized"*) exit 1 ;;
esac
exit $code
