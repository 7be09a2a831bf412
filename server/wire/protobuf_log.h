// SPDX-License-Identifier: Apache-2.0
//
// Makes protobuf's own log lines lines of the daemon's log, because they hold text that peers sent.
#pragma once

namespace gemmd {

// From now on what protobuf logs goes to the default logger as `event=protobuf`. Its errors become
// warnings, because a peer can cause them: a string that is no UTF-8, say.
//
// Does nothing with protobuf 22 or newer, which logs through Abseil.
void RouteProtobufLog();

}  // namespace gemmd
