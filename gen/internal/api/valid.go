// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
)

// valid returns an error if the snapshot lacks something that every snapshot
// must have.
func (a *API) valid() error {
	for i, h := range a.Headers {
		if h == nil || h.Name == "" {
			return fmt.Errorf("header %d has no name", i+1)
		}
	}
	for i, f := range a.Functions {
		if f == nil || f.Name == "" || f.Type == nil || f.Type.Kind != Func {
			return fmt.Errorf("function %d has no name or no prototype", i+1)
		}
	}
	for i, e := range a.Enums {
		if e == nil || len(e.Values) == 0 {
			return fmt.Errorf("enum %d has no values", i+1)
		}
	}
	for i, s := range a.Structs {
		if s == nil || s.Name == "" {
			return fmt.Errorf("struct %d has no name", i+1)
		}
		if err := validMembers(s.Members); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	for i, m := range a.Macros {
		if m == nil || m.Name == "" {
			return fmt.Errorf("macro %d has no name", i+1)
		}
	}
	for i, alias := range a.Aliases {
		if alias == nil || alias.Name == "" {
			return fmt.Errorf("alias %d has no name", i+1)
		}
	}
	for i, t := range a.Typedefs {
		if t == nil || t.Name == "" || t.Type == nil {
			return fmt.Errorf("typedef %d has no name or no type", i+1)
		}
	}
	for i, v := range a.Variables {
		if v == nil || v.Name == "" || v.Type == nil {
			return fmt.Errorf("variable %d has no name or no type", i+1)
		}
	}
	for i, m := range a.Unvalued {
		if m == nil || m.Name == "" {
			return fmt.Errorf("macro %d without a value has no name", i+1)
		}
	}
	for i, e := range a.Undeclared {
		if e == nil || e.Name == "" || e.Node == "" {
			return fmt.Errorf("undeclared function %d has no name or no node", i+1)
		}
	}
	return nil
}

func validMembers(members []*Member) error {
	for _, m := range members {
		if m == nil || (m.Type == nil) == (m.Aggregate == "") || m.Name == "" && m.Type != nil && m.Bits == nil || m.Bits != nil && m.Type == nil {
			return errors.New("a member has neither a name nor a type")
		}
		if err := validMembers(m.Members); err != nil {
			return err
		}
	}
	return nil
}
