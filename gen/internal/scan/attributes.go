// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// harmless lists the attributes that change neither a layout nor a call.
var harmless = []string{
	"access", "alloc_align", "alloc_size", "assume_aligned", "always_inline", "artificial", "bitwise", "cold", "const", "constructor", "copy", "destructor", "deprecated", "diagnose_if", "enum_extensibility", "error", "fd_arg", "fd_arg_read", "fd_arg_write", "flag_enum", "flatten", "force", "format",
	"format_arg", "hot", "leaf", "malloc", "may_alias", "no_icf", "no_instrument_function", "no_profile_instrument_function", "no_reorder", "no_sanitize", "no_sanitize_address",
	"no_sanitize_undefined", "no_split_stack", "no_stack_limit", "no_stack_protector", "noclone", "noinline", "noipa", "nonstring", "nonnull", "noreturn", "nothrow", "null_terminated_string_arg", "nullable", "optimize", "patchable_function_entry", "pure", "retain", "returns_twice", "section", "returns_nonnull",
	"sentinel", "simd", "stack_protect", "symver", "tainted_args", "target", "tls_model", "unused", "used", "visibility", "warn_if_not_aligned", "warn_unused_result", "warning", "weak", "zero_call_used_regs",
}

// attributes rejects all attributes that are not harmless.
func (s *scanner) attributes(list *cc.AttributeSpecifierList) {
	s.eachAttribute(list, func(at cc.Node, _, _, text string) {
		s.reject(at, "the attribute %s cannot be represented", text)
	})
}

// eachAttribute calls visit for all attributes that are not harmless.
func (s *scanner) eachAttribute(list *cc.AttributeSpecifierList, visit func(at cc.Node, name, arguments, text string)) {
	for ; list != nil; list = list.AttributeSpecifierList {
		values := list.AttributeSpecifier.AttributeValueList
		for ; values != nil; values = values.AttributeValueList {
			text := strings.ReplaceAll(cc.NodeSource(values.AttributeValue), " ", "")
			name, arguments, _ := strings.Cut(text, "(")
			name = strings.Trim(name, "_")
			if !slices.Contains(harmless, name) {
				visit(values.AttributeValue, name, arguments, text)
			}
		}
	}
}
