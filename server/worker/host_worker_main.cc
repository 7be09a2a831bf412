// SPDX-License-Identifier: Apache-2.0
//
// gemmd-host-worker: the worker of `cpu` or of a simulator. gemmd starts it and speaks with it
// (protocol.h).
#include "server/worker/host_worker.h"

int main(int argc, char** argv) { return gemmd::EnterHostWorker(argc, argv); }
