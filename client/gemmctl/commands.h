// SPDX-License-Identifier: Apache-2.0
//
// The commands of gemmctl, in the order of its help.
#pragma once

#include "client/gemmctl/command.h"

namespace gemmd {

extern const Command kMultiplyCommand;
extern const Command kExplainCommand;
extern const Command kRandomCommand;
extern const Command kConvertCommand;
extern const Command kDiffCommand;
extern const Command kPutCommand;
extern const Command kGetCommand;
extern const Command kLsCommand;
extern const Command kRmCommand;
extern const Command kKeepCommand;
extern const Command kCompressCommand;
extern const Command kKernelsCommand;
extern const Command kInstructionsCommand;
extern const Command kFragmentCommand;
extern const Command kDevicesCommand;
extern const Command kInfoCommand;
extern const Command kTopCommand;
extern const Command kHealthCommand;
extern const Command kDoctorCommand;
extern const Command kIncidentsCommand;
extern const Command kReplayCommand;
extern const Command kCompletionCommand;
extern const Command kRestartDeviceCommand;
extern const Command kSessionsCommand;
extern const Command kDropSessionCommand;

inline constexpr const Command* kCommands[] = {
    &kMultiplyCommand,     &kExplainCommand,     &kRandomCommand,    &kConvertCommand,
    &kDiffCommand,         &kPutCommand,         &kGetCommand,       &kLsCommand,
    &kRmCommand,           &kKeepCommand,        &kCompressCommand,  &kKernelsCommand,
    &kInstructionsCommand, &kFragmentCommand,    &kDevicesCommand,   &kInfoCommand,
    &kTopCommand,          &kHealthCommand,      &kDoctorCommand,    &kRestartDeviceCommand,
    &kSessionsCommand,     &kDropSessionCommand, &kIncidentsCommand, &kReplayCommand,
    &kCompletionCommand,
};

}  // namespace gemmd
