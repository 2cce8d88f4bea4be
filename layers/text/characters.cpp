// Asks utf8proc, and gives it only those parts of a text that a normal form may change.
#include "layers/text/characters.h"

#include "transport/cause.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

namespace tsprun::detail::text {

namespace {

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

/// Returns whether a character stays as it is in this form, whatever stands beside it, unless what follows is none of these.
bool is_stable(char32_t code, NormalForm form) {
  if (code < 0x80) return true;
  const bool decomposes = form == NormalForm::nfd || form == NormalForm::nfkd;
  if (code >= 0x1100 && code <= 0x11ff) return false;  // Hangul, which utf8proc (de)composes by arithmetic
  if (code >= 0xac00 && code <= 0xd7a3) return !decomposes;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  return property->combining_class == 0 && property->decomp_seqindex == UINT16_MAX && property->comb_index == UINT16_MAX;
}

int options_of(NormalForm form) {
  switch (form) {
    case NormalForm::nfc: return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalForm::nfd: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalForm::nfkc: return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::nfkd: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

}  // namespace

Character character_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U) --at;
  return character_at(text, at);
}

void append(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  const auto rest = [&](int shift) { put(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6), rest(0);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12), rest(6), rest(0);
  } else {
    put(0xf0 | code >> 18), rest(12), rest(6), rest(0);
  }
}

std::size_t utf8_prefix(std::string_view text, std::size_t& bytes_wrong) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    // Which second bytes may follow (no overlong form, no surrogate, nothing above U+10FFFF), and how many bytes there are.
    const std::size_t bytes = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    std::size_t good = 1;
    while (good < bytes && at + good < text.size()) {
      const unsigned byte = static_cast<unsigned char>(text[at + good]);
      if (byte < (good == 1 ? low : 0x80) || byte > (good == 1 ? high : 0xbf)) break;
      ++good;
    }
    if (good != bytes) {
      bytes_wrong = good < bytes && at + good == text.size() ? 0 : good;
      return at;
    }
    at += bytes;
  }
  bytes_wrong = 0;
  return at;
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_word(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    // Letters in circles and squares, and the two joiners.
    case UTF8PROC_CATEGORY_SO:
      return (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
             (code >= 0x1f170 && code <= 0x1f189);
    default: return code == 0x200c || code == 0x200d;
  }
}

bool is_numeric(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found == UTF8PROC_CATEGORY_ND || found == UTF8PROC_CATEGORY_NL || found == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t code) {
  if (code < 0x80)
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
           (code >= '{' && code <= '~');
  const utf8proc_category_t found = category(code);
  return found >= UTF8PROC_CATEGORY_PC && found <= UTF8PROC_CATEGORY_PO;
}

bool is_nonspacing_mark(char32_t code) { return category(code) == UTF8PROC_CATEGORY_MN; }

bool is_mark(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found == UTF8PROC_CATEGORY_MN || found == UTF8PROC_CATEGORY_MC || found == UTF8PROC_CATEGORY_ME;
}

bool is_other(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found == UTF8PROC_CATEGORY_CC || found == UTF8PROC_CATEGORY_CF || found == UTF8PROC_CATEGORY_CO;
}

bool is_cased(char32_t code) {
  if (code < 0x80) return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
  const utf8proc_category_t found = category(code);
  const auto whole = static_cast<utf8proc_int32_t>(code);
  return found == UTF8PROC_CATEGORY_LU || found == UTF8PROC_CATEGORY_LL || found == UTF8PROC_CATEGORY_LT ||
         utf8proc_toupper(whole) != whole || utf8proc_tolower(whole) != whole;
}

void append_lower(std::string& text, char32_t code) {
  if (code == 0x130) text += "i\xcc\x87";  // the only one that becomes two
  else append(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

std::string normalized(std::string_view text, NormalForm form) {
  std::string result;
  result.reserve(text.size());
  std::size_t kept = 0;      // what lies before it is in the result
  std::size_t previous = 0;  // the last stable character: it may combine with what follows
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (is_stable(character.code, form)) {
      previous = at;
      at += character.bytes;
      continue;
    }
    std::size_t end = at + character.bytes;
    while (end < text.size()) {
      const Character next = character_at(text, end);
      if (is_stable(next.code, form)) break;
      end += next.bytes;
    }
    const std::size_t begin = previous;
    result += text.substr(kept, begin - kept);
    utf8proc_uint8_t* mapped = nullptr;
    const utf8proc_ssize_t bytes =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + begin, static_cast<utf8proc_ssize_t>(end - begin),
                     &mapped, static_cast<utf8proc_option_t>(options_of(form)));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
    if (bytes < 0) throw Error(Cause::refused, std::string("a text has no normal form: ") + utf8proc_errmsg(bytes));
    result.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(bytes));
    kept = at = previous = end;
  }
  return result += text.substr(kept);
}

std::size_t grapheme_end(std::string_view text, std::size_t at) {
  Character last = character_at(text, at);
  utf8proc_int32_t state = 0;
  for (at += last.bytes; at < text.size(); at += last.bytes) {
    const Character next = character_at(text, at);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code), static_cast<utf8proc_int32_t>(next.code),
                                         &state))
      break;
    last = next;
  }
  return at;
}

}  // namespace tsprun::detail::text
