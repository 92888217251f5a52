// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// noValue stands for the type of a macro without a value: a function-like
// macro, or one that stands for text that is not a constant.
const noValue = "no value"

func (c *comparer) macros() {
	pairs(c.from.Unvalued, c.to.Unvalued, func(m *api.Unvalued) string { return m.Name }, func(name string, a, b *api.Unvalued) {
		if a != nil && b != nil && differ(a.Body, b.Body) {
			c.add(compatible, Change{Kind: MacroTextChanged, Name: name})
		}
	})
	pairs(macrosOf(c.from), macrosOf(c.to), func(m *api.Macro) string { return m.Name }, func(name string, a, b *api.Macro) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: MacroAdded, Name: name, To: macroText(b)})
		case b == nil:
			c.add(source, Change{Kind: MacroRemoved, Name: name, From: macroText(a)})
		default:
			c.header(name, a.Header, b.Header)
			if (a.Value != b.Value || a.Text != b.Text) && a.Type != noValue && b.Type != noValue {
				c.add(abi, Change{
					Kind: MacroValueChanged, Name: name, From: macroValue(a), To: macroValue(b),
					Why: "the old value is compiled into programs",
				})
			}
			if from, to := macroType(a), macroType(b); from != to {
				c.add(source, Change{Kind: MacroTypeChanged, Name: name, From: from, To: to})
			}
		}
	})
}

// macrosOf returns all macros, with or without a value.
func macrosOf(a *api.API) []*api.Macro {
	all := slices.Clone(a.Macros)
	for _, m := range a.Unvalued {
		all = append(all, &api.Macro{Name: m.Name, Header: m.Header, Type: noValue})
	}
	return all
}

func macroText(m *api.Macro) string {
	if m.Type == noValue {
		return noValue
	}
	return macroValue(m) + ", " + macroType(m)
}

// macroValue returns the value of a macro as text. Values of 64 bits, which are
// masks or addresses, are in hexadecimal.
func macroValue(m *api.Macro) string {
	if m.Text != "" {
		return m.Text
	}
	if strings.Contains(m.Type, "long") || m.Type == "pointer" {
		return fmt.Sprintf("%#x", uint64(m.Value))
	}
	return strconv.FormatInt(m.Value, 10)
}

func macroType(m *api.Macro) string {
	if m.Enumerator != "" {
		return "another name of " + m.Enumerator
	}
	return m.Type
}

func (c *comparer) aliases() {
	pairs(c.from.Aliases, c.to.Aliases, func(a *api.Alias) string { return a.Name }, func(name string, a, b *api.Alias) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: AliasAdded, Name: name, To: b.Target})
		case b == nil:
			c.add(source, Change{Kind: AliasRemoved, Name: name, From: a.Target})
		default:
			c.header(name, a.Header, b.Header)
			if a.Target != b.Target {
				c.add(source, Change{Kind: AliasChanged, Name: name, From: a.Target, To: b.Target})
			}
		}
	})
}
