// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/tensor_session.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// The file that stores the session token of an address; empty if there is no folder.
std::string SessionPath(const GlobalFlags& flags) {
  if (flags.session_folder.empty()) return "";
  // Addresses may contain characters not allowed in file names, and may be too long for one.
  const std::string digest = Sha256Of(std::as_bytes(std::span(flags.address)));
  return absl::StrCat(flags.session_folder, "/", absl::BytesToHexString(digest.substr(0, 16)),
                      ".session");
}

constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kHandleDigits = 32;

absl::Status Failed(const std::string& path, const char* what) {
  const int error = errno;
  return absl::InternalError(
      absl::StrCat(path, ": ", what, ": ", std::generic_category().message(error)));
}

// Whether the token folder exists. Errors: if another user could create files in it.
absl::StatusOr<bool> CheckFolder(const std::string& folder) {
  struct stat facts = {};
  if (lstat(folder.c_str(), &facts) != 0) {
    return errno == ENOENT ? absl::StatusOr<bool>(false) : Failed(folder, "stat");
  }
  const bool is_ours =
      S_ISDIR(facts.st_mode) && facts.st_uid == geteuid() && (facts.st_mode & 077) == 0;
  if (is_ours) return true;
  return absl::PermissionDeniedError(absl::StrCat(
      folder, ": got a path that others own or may write, want a folder of mode 0700"));
}

using KeptToken = std::optional<std::string>;

// Empty if there is no such file. Errors: if another user could have written it.
absl::StatusOr<KeptToken> ReadToken(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  if (file < 0) return Failed(path, "open");
  struct stat facts = {};
  const bool is_ours = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) &&
                       facts.st_uid == geteuid() && (facts.st_mode & 077) == 0;
  char text[kMaxTokenBytes];
  const ssize_t got = is_ours ? read(file, text, sizeof(text)) : 0;
  close(file);
  if (!is_ours) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": got a file that others may read or write, want one of mode 0600"));
  }
  return std::string(
      absl::StripAsciiWhitespace({text, static_cast<size_t>(std::max<ssize_t>(got, 0))}));
}

// Returns false if another process has stored a token meanwhile.
absl::StatusOr<bool> KeepToken(const GlobalFlags& flags, const std::string& token) {
  const std::string& folder = flags.session_folder;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Failed(folder, "mkdir");
  if (const auto is_ours = CheckFolder(folder); !is_ours.ok()) return is_ours.status();
  const std::string path = SessionPath(flags);
  const std::string fresh = absl::StrCat(path, ".", getpid());
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return Failed(fresh, "open");
  const std::string text = token + "\n";
  const bool is_written =
      write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool is_closed = close(file) == 0;
  // link() is atomic and fails if the file exists.
  const bool is_linked = is_written && is_closed && link(fresh.c_str(), path.c_str()) == 0;
  const int error = errno;
  unlink(fresh.c_str());
  errno = error;
  if (is_linked) return true;
  if (is_written && is_closed && error == EEXIST) return false;
  return Failed(path, "write");
}

// Removes the file if it still holds this token, not one that another process has stored meanwhile.
// Removal holds a lock on the folder. A file is created only if there is none, so the file read
// under the lock is the file removed.
absl::Status ForgetToken(const GlobalFlags& flags, const std::string& token) {
  const std::string& folder = flags.session_folder;
  const int lock = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) {
    absl::Status status = Failed(folder, "lock");
    if (lock >= 0) close(lock);
    return status;
  }
  const std::string path = SessionPath(flags);
  const auto kept = ReadToken(path);
  absl::Status status = kept.status();
  const bool is_same = kept.ok() && kept->has_value() && **kept == token;
  if (is_same && unlink(path.c_str()) != 0 && errno != ENOENT) status = Failed(path, "remove");
  close(lock);
  return status;
}

absl::StatusOr<Client> Join(const GlobalFlags& flags, const std::string& token) {
  ASSIGN_OR_RETURN(auto client, Connect(flags));
  if (const auto session = client.OpenSession(token); !session.ok()) return session.status();
  return client;
}

// Returns nullopt if another process has stored a session meanwhile; the new session then ends on
// its own.
absl::StatusOr<std::optional<Client>> OpenNew(const GlobalFlags& flags, const Console& console) {
  ASSIGN_OR_RETURN(auto client, Connect(flags));
  const auto session = client.OpenSession();
  if (!session.ok()) return session.status();
  if (SessionPath(flags).empty()) {
    const std::string note = absl::StrCat(
        console.program,
        ": opened a session; there is no folder for its token, so other commands reach it with\n",
        "  --session ", session->token, "\n");
    std::fwrite(note.data(), 1, note.size(), console.err);
    return client;
  }
  ASSIGN_OR_RETURN(const auto is_kept, KeepToken(flags, session->token));
  if (!is_kept) return std::nullopt;
  return client;
}

// The token stored for the address; empty if there is none.
absl::StatusOr<KeptToken> FindToken(const GlobalFlags& flags) {
  const std::string path = SessionPath(flags);
  if (path.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const auto is_there, CheckFolder(flags.session_folder));
  return is_there ? ReadToken(path) : KeptToken();
}

}  // namespace

absl::StatusOr<Client> ConnectSession(const GlobalFlags& flags, bool may_open,
                                      const Console& console) {
  if (!flags.session.empty()) return Join(flags, flags.session);
  // Repeats if another command has stored or removed a token meanwhile.
  while (true) {
    ASSIGN_OR_RETURN(const auto token, FindToken(flags));
    if (!token.has_value()) {
      if (!may_open) break;
      ASSIGN_OR_RETURN(auto opened, OpenNew(flags, console));
      if (opened.has_value()) return *std::move(opened);
      continue;
    }
    if (!token->empty()) {
      auto client = Join(flags, *token);
      if (client.ok() || !absl::IsUnauthenticated(client.status())) return client;
    }
    // The session has ended, or the file was truncated.
    RETURN_IF_ERROR(ForgetToken(flags, *token));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "session: got none at ", flags.address, ", want one: `", console.program,
      " put` opens one, and it ends 30 s after its last command unless a tensor is pinned"));
}

ExitCode FailSession(const Console& console, const absl::Status& status) {
  const bool is_ours = absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
                       absl::IsPermissionDenied(status) || absl::IsInternal(status);
  return is_ours ? FailLocally(console, status) : FailCall(console, status);
}

namespace {

// Two digits for each byte.
std::string BytesOf(absl::string_view digits) {
  std::string bytes;
  for (size_t at = 0; at + 1 < digits.size(); at += 2) {
    uint32_t byte = 0;
    if (!absl::SimpleHexAtoi(digits.substr(at, 2), &byte)) return {};
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace

TensorRef TensorNamed(const std::string& text) {
  const absl::string_view name = absl::StripPrefix(text, "@");
  const bool is_handle = name.size() == kHandleDigits &&
                         std::all_of(name.begin(), name.end(),
                                     [](unsigned char c) { return absl::ascii_isxdigit(c); });
  return is_handle ? TensorOfHandle(BytesOf(name)) : NamedTensor(name);
}

namespace {

using Align = TextTable::Align;

std::string KeptText(const v1::TensorInfo& tensor) {
  if (tensor.lost()) return "lost";
  if (tensor.pinned()) return "pinned";
  return absl::StrCat("for ", FormatNanoseconds(tensor.expires_in_ns()));
}

std::string PlacesText(const v1::TensorInfo& tensor) {
  std::vector<std::string> places;
  for (const v1::TensorPlace& place : tensor.places()) places.push_back(place.device());
  return places.empty() ? "-" : absl::StrJoin(places, " ");
}

// 32 hexadecimal digits.
std::string HandleText(const v1::TensorInfo& tensor) {
  return absl::BytesToHexString(tensor.handle());
}

}  // namespace

std::string ShapeText(const v1::TensorSpec& spec) {
  const int64_t matrices = spec.has_matrices() ? spec.matrices() : 1;
  return absl::StrCat(matrices == 1 ? "" : absl::StrCat(matrices, " of "), spec.rows(), " x ",
                      spec.columns(), " ", ElementTypeName(spec.type()),
                      spec.sparsity() == v1::SPARSITY_NONE ? "" : " 2:4",
                      spec.order() == v1::ORDER_COLUMN_MAJOR ? ", columns" : "",
                      !spec.scale().has_blocks()
                          ? ""
                          : absl::StrCat(", blocks of ", spec.scale().blocks().rows_per_block(),
                                         "x", spec.scale().blocks().k_per_block()));
}

std::string TensorTable(const v1::ListTensorsResponse& tensors) {
  TextTable table({{"name"},
                   {"handle"},
                   {"shape"},
                   {"bytes", Align::kRight},
                   {"kept"},
                   {"places"},
                   {"products", Align::kRight}});
  for (const v1::TensorInfo& tensor : tensors.tensors()) {
    table.AddRow({tensor.name().empty() ? "-" : tensor.name(), HandleText(tensor),
                  ShapeText(tensor.spec()), FormatBytes(tensor.kept_bytes()), KeptText(tensor),
                  PlacesText(tensor), FormatCount(tensor.products())});
  }
  return absl::StrCat(table.Print(), "\n", FormatBytes(tensors.session_bytes()), " of ",
                      FormatBytes(tensors.max_session_bytes()), " of the session, ",
                      FormatBytes(tensors.free_bytes()), " free\n");
}

std::string TensorText(const v1::TensorInfo& tensor) {
  return absl::StrCat("name    ", tensor.name().empty() ? "-" : tensor.name(), "\nhandle  ",
                      HandleText(tensor), "\nshape   ", ShapeText(tensor.spec()), "\nbytes   ",
                      FormatBytes(tensor.bytes()), "\nkept    ", KeptText(tensor), "\n");
}

nlohmann::ordered_json TensorJson(const v1::TensorInfo& tensor) {
  nlohmann::ordered_json json = {{"handle", HandleText(tensor)}};
  json.update(MessageJson(tensor));
  return json;
}

}  // namespace gemmd
