// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// harmless are attributes that change neither a layout nor a call.
var harmless = []string{
	"access", "alloc_size", "always_inline", "artificial", "bitwise", "cold", "const", "deprecated", "force", "format",
	"format_arg", "hot", "leaf", "malloc", "noinline", "nonnull", "noreturn", "nothrow", "pure", "returns_nonnull",
	"sentinel", "unavailable", "unused", "used", "visibility", "warn_unused_result",
}

// attributes rejects all attributes but the harmless. aligned(8) on a member of
// eight bytes, as the kernel's __aligned_u64 has, changes nothing on a 64-bit
// machine; the comparison with cc's own layout would show if it did.
func (s *scanner) attributes(list *cc.AttributeSpecifierList, allowed string) {
	for ; list != nil; list = list.AttributeSpecifierList {
		values := list.AttributeSpecifier.AttributeValueList
		for ; values != nil; values = values.AttributeValueList {
			text := strings.ReplaceAll(cc.NodeSource(values.AttributeValue), " ", "")
			name, arguments, _ := strings.Cut(text, "(")
			name = strings.Trim(name, "_")
			if slices.Contains(harmless, name) || allowed != "" && name == "aligned" && "("+arguments == allowed {
				continue
			}
			s.reject(values.AttributeValue, "the attribute %s cannot be represented", text)
		}
	}
}
