// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gemmd {

// The bytes of base64url without padding (RFC 4648, 5). Nothing where the text has any other
// character, a length that no bytes have, or bits beyond the last byte that are not zero: so two
// texts never stand for the same bytes.
std::optional<std::string> FromBase64Url(std::string_view text);

}  // namespace gemmd
