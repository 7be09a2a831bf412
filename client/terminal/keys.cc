// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/keys.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace gemmd {

std::optional<TerminalSize> SizeOfTerminal(std::FILE* file) {
  winsize size = {};
  if (ioctl(fileno(file), TIOCGWINSZ, &size) != 0) return std::nullopt;
  // A terminal that does not know its size says 0.
  return TerminalSize{.columns = size.ws_col == 0 ? 80 : size.ws_col,
                      .lines = size.ws_row == 0 ? 24 : size.ws_row};
}

std::unique_ptr<TerminalKeys> TerminalKeys::Open(std::FILE* in) {
  termios settings = {};
  const int descriptor = fileno(in);
  // In the background, changing the terminal would stop the program.
  const bool is_ours = tcgetattr(descriptor, &settings) == 0 && tcgetpgrp(descriptor) == getpgrp();
  if (!is_ours) return nullptr;
  return std::unique_ptr<TerminalKeys>(new TerminalKeys(descriptor, settings));
}

TerminalKeys::TerminalKeys(int in, const termios& settings) : in_(in), settings_(settings) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, &blocked_);
  signals_ = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
  termios keys = settings;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  tcsetattr(in_, TCSADRAIN, &keys);
}

TerminalKeys::~TerminalKeys() {
  tcsetattr(in_, TCSADRAIN, &settings_);
  if (signals_ >= 0) {
    // What has been seen shall not end the program again.
    signalfd_siginfo seen;
    while (read(signals_, &seen, sizeof(seen)) > 0) continue;
    close(signals_);
  }
  pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
}

std::optional<char> TerminalKeys::Wait(absl::Duration limit) {
  pollfd files[] = {{.fd = in_, .events = POLLIN, .revents = 0},
                    {.fd = signals_, .events = POLLIN, .revents = 0}};
  constexpr int64_t kMostMilliseconds = 1'000'000;
  const int64_t milliseconds = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(limit + absl::Milliseconds(1)), 0, kMostMilliseconds);
  if (poll(files, 2, static_cast<int>(milliseconds)) <= 0) return std::nullopt;
  if (files[1].revents != 0) return kEnd;
  char key = kEnd;
  if (read(in_, &key, 1) != 1) return kEnd;
  return key;
}

}  // namespace gemmd
