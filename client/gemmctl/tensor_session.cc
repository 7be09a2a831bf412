// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/tensor_session.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
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
#include "gemmd/v1/statistics.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// A file of an address; empty if there is no folder.
std::string PathOf(const GlobalFlags& flags, const char* kind) {
  if (flags.session_folder.empty()) return "";
  // Addresses may contain characters not allowed in file names, and may be too long for one.
  const std::string digest = Sha256Of(std::as_bytes(std::span(flags.address)));
  return absl::StrCat(flags.session_folder, "/", absl::BytesToHexString(digest.substr(0, 16)), ".",
                      kind);
}

// The files that store the session's token, and what was put in that session.
std::string SessionPath(const GlobalFlags& flags) { return PathOf(flags, "session"); }
std::string PutsPath(const GlobalFlags& flags) { return PathOf(flags, "tensors"); }

constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kMaxPutsBytes = size_t{16} << 20;
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

// 32 hexadecimal digits.
std::string HandleText(const v1::TensorInfo& tensor) {
  return absl::BytesToHexString(tensor.handle());
}

// The contents of a file in the token folder, up to one byte more than `max_bytes`; nullopt if
// there is none. Errors: if another user could have written it.
absl::StatusOr<std::optional<std::string>> ReadPrivateFile(const GlobalFlags& flags,
                                                           const std::string& path,
                                                           size_t max_bytes) {
  if (path.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const auto has_folder, CheckFolder(flags.session_folder));
  if (!has_folder) return std::nullopt;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  if (file < 0) return Failed(path, "open");
  struct stat facts = {};
  const bool is_ours = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) &&
                       facts.st_uid == geteuid() && (facts.st_mode & 077) == 0;
  std::string text(is_ours ? std::min(static_cast<size_t>(facts.st_size), max_bytes + 1) : 0, '\0');
  const ssize_t got = read(file, text.data(), text.size());
  close(file);
  if (!is_ours) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": got a file that others may read or write, want one of mode 0600"));
  }
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// Writes a private file whole or not at all. Returns false if there is one already that it may not
// replace.
absl::StatusOr<bool> WritePrivateFile(const std::string& path, const std::string& text,
                                      bool may_replace) {
  const std::string fresh = absl::StrCat(path, ".", getpid());
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return Failed(fresh, "open");
  const bool is_whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool is_written = close(file) == 0 && is_whole;
  // Both are atomic, and link() fails if the file exists.
  const auto put_in_place = may_replace ? rename : link;
  const bool is_in_place = is_written && put_in_place(fresh.c_str(), path.c_str()) == 0;
  const bool is_there = is_written && !may_replace && errno == EEXIST;
  const absl::Status failed = Failed(path, "write");
  if (!is_in_place || !may_replace) unlink(fresh.c_str());
  if (is_in_place || is_there) return is_in_place;
  return failed;
}

// The token stored for the address; nullopt if there is none. Errors: if another user could have
// written it.
absl::StatusOr<std::optional<std::string>> ReadToken(const GlobalFlags& flags) {
  ASSIGN_OR_RETURN(const auto text, ReadPrivateFile(flags, SessionPath(flags), kMaxTokenBytes));
  if (!text.has_value()) return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(*text));
}

// Returns false if another process has stored a token meanwhile.
absl::StatusOr<bool> KeepToken(const GlobalFlags& flags, const std::string& token) {
  const std::string& folder = flags.session_folder;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Failed(folder, "mkdir");
  if (const auto is_ours = CheckFolder(folder); !is_ours.ok()) return is_ours.status();
  return WritePrivateFile(SessionPath(flags), token + "\n", /*may_replace=*/false);
}

// A lock that excludes other commands until it is destroyed.
absl::StatusOr<std::shared_ptr<void>> Lock(const std::string& path, int open_flags) {
  const int file = open(path.c_str(), open_flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return Failed(path, "lock");
  std::shared_ptr<void> lock(nullptr, [file](void*) { close(file); });
  if (flock(file, LOCK_EX) != 0) return Failed(path, "lock");
  return lock;
}

// For a command that changes what is remembered. The folder must exist.
absl::StatusOr<std::shared_ptr<void>> LockPuts(const GlobalFlags& flags) {
  return Lock(PathOf(flags, "lock"), O_RDWR | O_CREAT);
}

// Removes the file if it still holds this token, not one that another process has stored meanwhile.
// Removal holds the lock on the folder. A file is created only if there is none, so the file read
// under the lock is the file removed.
absl::Status ForgetToken(const GlobalFlags& flags, const std::string& token) {
  ASSIGN_OR_RETURN(const auto lock, Lock(flags.session_folder, O_RDONLY | O_DIRECTORY));
  const std::string path = SessionPath(flags);
  const auto kept = ReadToken(flags);
  absl::Status status = kept.status();
  const bool is_same = kept.ok() && kept->has_value() && **kept == token;
  if (is_same && unlink(path.c_str()) != 0 && errno != ENOENT) status = Failed(path, "remove");
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

// What was put: {"session": TOKEN, "server": START, "tensors": {NAME: {"path": ...}}}; empty:
// nothing. START is when the server started.
bool ArePuts(const nlohmann::json& puts) {
  const auto has = [](const nlohmann::json& json, const char* field, bool is_number) {
    const auto it = json.find(field);
    return it != json.end() && (is_number ? it->is_number_integer() : it->is_string());
  };
  if (!puts.is_object() || !has(puts, "session", false) || !has(puts, "server", true)) return false;
  const auto tensors = puts.find("tensors");
  if (tensors == puts.end() || !tensors->is_object()) return false;
  return std::all_of(tensors->begin(), tensors->end(), [&](const nlohmann::json& put) {
    return put.is_object() && has(put, "path", false) && has(put, "type", false) &&
           has(put, "sha256", false) && has(put, "device", false) && has(put, "handle", false) &&
           has(put, "bytes", true) && has(put, "modified_ns", true);
  });
}

absl::StatusOr<nlohmann::json> ReadPuts(const GlobalFlags& flags) {
  const std::string path = PutsPath(flags);
  ASSIGN_OR_RETURN(const auto text, ReadPrivateFile(flags, path, kMaxPutsBytes));
  if (!text.has_value()) return nlohmann::json::object();
  nlohmann::json puts = nlohmann::json::parse(*text, nullptr, false);
  if (ArePuts(puts)) return puts;
  return absl::InternalError(
      absl::StrCat(path, ": got a file that gemmctl has not written; remove it"));
}

// Call it with the lock on what was put.
absl::Status WritePuts(const GlobalFlags& flags, const nlohmann::json& puts) {
  const std::string path = PutsPath(flags);
  if (puts["tensors"].empty()) {
    return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : Failed(path, "remove");
  }
  // Bytes of a path that are no UTF-8 are replaced: that file will be missing.
  const std::string text =
      puts.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return WritePrivateFile(path, text, /*may_replace=*/true).status();
}

absl::Status NotAsPut(const std::string& name, const std::string& path, const char* what) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, ": ", path, " ", what, ", and the server has lost what was put from it: `gemmctl put ",
      path, " --name ", name, "` puts it as it is now, `gemmctl rm ", name, "` gives it up"));
}

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

// Puts a remembered tensor again, and stores its new handle.
absl::Status PutAgain(Client& client, const std::string& name, nlohmann::json& put) {
  const auto path = put["path"].get<std::string>();
  const auto type = ParseElementType(put["type"].get<std::string>());
  const auto facts = FactsOf(path, put["type"].get<std::string>());
  if (!facts.has_value()) return NotAsPut(name, path, "is missing");
  if (facts->bytes != put["bytes"].get<int64_t>()) return NotAsPut(name, path, "has changed");
  const auto npy = MappedNpy::Open(path, type.value_or(v1::ELEMENT_TYPE_UNSPECIFIED));
  if (!npy.ok()) return npy.status();
  PutOptions options = {.name = name, .pinned = true, .device = put["device"].get<std::string>()};
  options.sha256 = BytesOf(put["sha256"].get<std::string>());
  ASSIGN_OR_RETURN(const auto view, ViewFile(*npy, options));
  const bool is_same_time = facts->modified_ns == put["modified_ns"].get<int64_t>();
  if (!is_same_time && Sha256Of(view.data) != options.sha256) {
    return NotAsPut(name, path, "has changed");
  }
  auto tensor = client.Put(view, options);
  if (absl::IsDataLoss(tensor.status())) return NotAsPut(name, path, "has changed");
  if (!tensor.ok()) return tensor.status();
  put["modified_ns"] = facts->modified_ns;
  put["handle"] = absl::BytesToHexString(std::move(*tensor).Release());
  return absl::OkStatus();
}

// When the server started; 0 if it does not say.
int64_t StartOf(Client& client) {
  const auto statistics = client.GetStatistics();
  return statistics.ok() ? statistics->started_unix_ns() : 0;
}

// Puts the files of another session than the client's again if the server was restarted after they
// were put, and otherwise forgets them: a session that has ended in another way, such as by an
// operator, is not restored. Other commands wait meanwhile.
absl::Status PutAllAgain(Client& client, const GlobalFlags& flags, const std::string& replaced,
                         const Console& console) {
  ASSIGN_OR_RETURN(auto puts, ReadPuts(flags));
  if (puts.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto session, client.OpenSession());
  if (puts["session"] == session.token) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto lock, LockPuts(flags));
  ASSIGN_OR_RETURN(puts, ReadPuts(flags));
  if (puts.empty() || puts["session"] == session.token) return absl::OkStatus();
  const int64_t start = StartOf(client);
  if (start == 0) return absl::OkStatus();
  if (start == puts["server"]) puts["tensors"].clear();
  for (auto& [name, put] : puts["tensors"].items()) {
    if (name == replaced) continue;
    const std::string note =
        absl::StrCat(console.program, ": the server has lost the session; putting ", name,
                     " again from ", put["path"].get<std::string>(), "\n");
    std::fwrite(note.data(), 1, note.size(), console.err);
    RETURN_IF_ERROR(PutAgain(client, name, put));
  }
  puts["session"] = session.token;
  puts["server"] = start;
  return WritePuts(flags, puts);
}

// Whether a command that opens no session needs one, for the files that it puts again. If the
// session has ended without a restart, forgets them.
absl::StatusOr<bool> NeedsSession(const GlobalFlags& flags) {
  ASSIGN_OR_RETURN(const auto puts, ReadPuts(flags));
  if (puts.empty()) return false;
  ASSIGN_OR_RETURN(auto client, Connect(flags));
  const int64_t start = StartOf(client);
  if (start == 0) return false;
  if (start != puts["server"]) return true;
  ASSIGN_OR_RETURN(const auto lock, LockPuts(flags));
  ASSIGN_OR_RETURN(auto current, ReadPuts(flags));
  if (current != puts) return false;
  current["tensors"].clear();
  RETURN_IF_ERROR(WritePuts(flags, current));
  return false;
}

}  // namespace

absl::StatusOr<Client> ConnectSession(const GlobalFlags& flags, bool may_open,
                                      const Console& console, const std::string& replaced) {
  if (!flags.session.empty()) return Join(flags, flags.session);
  // Repeats if another command has stored or removed a token meanwhile.
  while (true) {
    ASSIGN_OR_RETURN(const auto token, ReadToken(flags));
    if (!token.has_value()) {
      if (!may_open) {
        ASSIGN_OR_RETURN(may_open, NeedsSession(flags));
        if (!may_open) break;
      }
      ASSIGN_OR_RETURN(auto opened, OpenNew(flags, console));
      if (!opened.has_value()) continue;
      RETURN_IF_ERROR(PutAllAgain(*opened, flags, replaced, console));
      return *std::move(opened);
    }
    if (!token->empty()) {
      auto client = Join(flags, *token);
      if (client.ok()) RETURN_IF_ERROR(PutAllAgain(*client, flags, replaced, console));
      if (client.ok() || !absl::IsUnauthenticated(client.status())) return client;
    }
    // The session has ended, or the file was truncated.
    RETURN_IF_ERROR(ForgetToken(flags, *token));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "session: got none at ", flags.address, ", want one: `", console.program,
      " put` opens one, and it ends 30 s after its last command unless a tensor is pinned"));
}

std::optional<PutFile> FactsOf(const std::string& path, const std::string& type) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error);
  if (error) return std::nullopt;
  return PutFile{
      .path = absolute,
      .type = type,
      .bytes = facts.st_size,
      .modified_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec};
}

absl::StatusOr<MatrixView> ViewFile(const MappedNpy& npy, PutOptions& options) {
  const std::vector<int64_t>& shape = npy.array().shape;
  if (shape.size() != 2 && shape.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat("FILE: got an array of ", shape.size(),
                                                   " dimensions, want 2, or 3 for a batch"));
  }
  if (shape.size() == 3) options.matrices = shape[0];
  MatrixView view =
      PackedView(npy.array().type, npy.data(), shape[shape.size() - 2], shape[shape.size() - 1]);
  view.order = npy.array().order;
  return view;
}

namespace {

void WarnOfStaleList(const Console& console, const absl::Status& status) {
  const std::string text = absl::StrCat(console.program, ": ", status.message(),
                                        "; the list of files to put again is not up to date\n");
  std::fwrite(text.data(), 1, text.size(), console.err);
}

absl::Status Remember(const GlobalFlags& flags, Client& client, const PutFile& file,
                      const v1::TensorInfo& tensor, const PutOptions& options) {
  if (!flags.session.empty() || PutsPath(flags).empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto session, client.OpenSession());
  ASSIGN_OR_RETURN(const auto lock, LockPuts(flags));
  ASSIGN_OR_RETURN(auto puts, ReadPuts(flags));
  if (!puts.empty() && puts["session"] != session.token) puts["tensors"].clear();
  puts["session"] = session.token;
  puts["server"] = StartOf(client);
  puts["tensors"][tensor.name()] = {{"path", file.path},
                                    {"type", file.type},
                                    {"bytes", file.bytes},
                                    {"modified_ns", file.modified_ns},
                                    {"sha256", absl::BytesToHexString(options.sha256)},
                                    {"device", options.device},
                                    {"handle", HandleText(tensor)}};
  return WritePuts(flags, puts);
}

absl::StatusOr<bool> Forget(const GlobalFlags& flags, const std::string& tensor) {
  if (!flags.session.empty()) return false;
  const std::string wanted(absl::StripPrefix(tensor, "@"));
  // Returns the name under which it is remembered, or an empty string.
  const auto find = [&](const nlohmann::json& puts) -> std::string {
    if (wanted.empty() || puts.empty()) return "";
    for (const auto& [name, put] : puts["tensors"].items()) {
      if (name == wanted || put["handle"].get<std::string>() == absl::AsciiStrToLower(wanted))
        return name;
    }
    return "";
  };
  ASSIGN_OR_RETURN(auto puts, ReadPuts(flags));
  if (find(puts).empty()) return false;
  ASSIGN_OR_RETURN(const auto lock, LockPuts(flags));
  ASSIGN_OR_RETURN(puts, ReadPuts(flags));
  const std::string name = find(puts);
  if (name.empty()) return false;
  puts["tensors"].erase(name);
  RETURN_IF_ERROR(WritePuts(flags, puts));
  return true;
}

}  // namespace

void RememberPut(const GlobalFlags& flags, Client& client, const PutFile& file,
                 const v1::TensorInfo& tensor, const PutOptions& options, const Console& console) {
  const absl::Status status = Remember(flags, client, file, tensor, options);
  if (!status.ok()) WarnOfStaleList(console, status);
}

bool ForgetPut(const GlobalFlags& flags, const std::string& tensor, const Console& console) {
  const auto was_remembered = Forget(flags, tensor);
  if (!was_remembered.ok()) WarnOfStaleList(console, was_remembered.status());
  return was_remembered.value_or(false);
}

ExitCode FailSession(const Console& console, const absl::Status& status) {
  const bool is_ours = absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
                       absl::IsPermissionDenied(status) || absl::IsInternal(status);
  return is_ours ? FailLocally(console, status) : FailCall(console, status);
}

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

// "256 x 512 bf16", "4 of 256 x 512 e4m3 2:4, columns".
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

}  // namespace

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
