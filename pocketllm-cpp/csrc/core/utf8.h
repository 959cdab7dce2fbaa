// Text of unknown origin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pocket {

// The length of the UTF-8 character at the front of `text`, which must not be empty; 0 when it is malformed (an
// overlong form, a surrogate, something past U+10FFFF, or cut off).
std::size_t utf8_length(std::string_view text) noexcept;

bool is_utf8(std::string_view text) noexcept;

// `code` must be a code point and no surrogate.
void append_utf8(std::string& out, std::uint32_t code);

// Text as an error message shows it: at most 200 bytes, without control characters, UTF-8 if `text` is.
std::string shown_text(std::string_view text);

}  // namespace pocket
