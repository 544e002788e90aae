// SPDX-License-Identifier: Apache-2.0
// The digits of a JSON text's checksum: placed, and compared.
#include "lab/base/sealed_json.h"

#include <span>

#include "core/checksum.h"

namespace rode::lab {
namespace {

// The last tag: other members may hold text of any kind, and come before.
std::size_t digits_in(std::string_view text) {
  const std::size_t tag = text.rfind(kChecksumTag);
  return tag == std::string_view::npos ? tag : tag + kChecksumTag.size();
}

std::string digits_for(std::string_view text, std::size_t at) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())), at);
}

}  // namespace

std::string sealed(nlohmann::ordered_json object, int indent) {
  object.erase(kChecksumMember);  // so that it comes last
  object[kChecksumMember] = checksum_placeholder();
  std::string text = object.dump(indent);
  const std::size_t at = digits_in(text);
  text.replace(at, kChecksumDigits, digits_for(text, at));
  return text;
}

Seal unseal(std::string_view text, nlohmann::ordered_json& parsed) {
  if (!parsed.is_object()) return Seal::absent;
  const bool has_member = parsed.erase(kChecksumMember) > 0;
  while (text.ends_with('\n')) text.remove_suffix(1);
  const std::size_t at = digits_in(text);
  // A tag in another member's text is not the object's own, if its key was not damaged.
  if (at == std::string_view::npos) return has_member ? Seal::wrong : Seal::absent;
  return text.substr(at, kChecksumDigits) == digits_for(text, at) ? Seal::right : Seal::wrong;
}

}  // namespace rode::lab
