// SPDX-License-Identifier: Apache-2.0

// Package api is the model of a header snapshot: the declarations of
// rdma-core's public headers, as facts, without their text. A snapshot is a
// JSON file with one declaration per line, so that diffs are readable.
package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// API has all declarations of one version of the headers.
type API struct {
	Version   string
	Headers   []*Header
	Functions []*Function
	Enums     []*Enum
	Structs   []*Struct
	Macros    []*Macro
	Aliases   []*Alias
	Typedefs  []*Typedef
	Variables []*Variable
	Unvalued  []*Unvalued
	// Undeclared holds the functions that the libraries export although the
	// headers no longer declare them as exported. Programs compiled with older
	// headers call them.
	Undeclared []*Export
}

// Header is one of rdma-core's headers, or a kernel header that they include.
type Header struct {
	Name string `json:"name"` // as a program includes it
	// Included is true if the header is read: because it is bound, or because a
	// bound header includes it.
	Included bool `json:"included,omitempty"`
}

// Function is an exported or static inline function.
type Function struct {
	Name   string   `json:"name"`
	Header string   `json:"header"`
	Type   *Type    `json:"type"` // of kind Func
	Params []string `json:"params,omitempty"`
	// Node is the ELF version node of an exported function, such as
	// IBVERBS_1.15. It is empty if the libraries were not available.
	Node string `json:"node,omitempty"`
	// Private is true if the library exports the function only for its own use.
	Private bool    `json:"private,omitempty"`
	Inline  *Inline `json:"inline,omitempty"`
}

// ParamNames returns a name for each parameter. A parameter that the header
// does not name is called by its position, such as arg2.
func (f *Function) ParamNames() []string {
	names := make([]string, len(f.Type.Params))
	copy(names, f.Params)
	for i, name := range names {
		if name != "" {
			continue
		}
		name = "arg" + strconv.Itoa(i+1)
		for slices.Contains(names, name) {
			name += "_"
		}
		names[i] = name
	}
	return names
}

// Inline describes a static inline function.
type Inline struct {
	// Call is the operation that the body calls with all its parameters in
	// order, such as qp->context->ops.post_send. Empty: the body has logic
	// of its own.
	Call string `json:"call,omitempty"`
	// Guard is the expression of the ibv_context whose verbs_context must
	// have the operation, such as qp->context; Call then starts with vctx.
	Guard string `json:"guard,omitempty"`
	// Body is a digest of the body's words, after preprocessing.
	Body string `json:"body,omitempty"`
}

// Enum is an enumeration. An anonymous one has no name.
type Enum struct {
	Name   string       `json:"name,omitempty"`
	Header string       `json:"header"`
	Signed bool         `json:"signed,omitempty"`
	Size   int64        `json:"size,omitempty"`    // in bytes, if not 4
	Bare   bool         `json:"typedef,omitempty"` // the name is a typedef's, and the enum has no tag
	Values []Enumerator `json:"values"`
}

// Key returns the name that identifies the enum in conventions.txt: the tag or,
// for an anonymous enum, a colon and the name of the first enumerator.
func (e *Enum) Key() string {
	if e.Name == "" {
		return ":" + e.Values[0].Name
	}
	return e.Name
}

// Enumerator is a named value of an Enum.
type Enumerator struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// Struct is a struct or union, complete or (without members) opaque.
type Struct struct {
	Name   string `json:"name"` // with its keyword: struct ibv_qp
	Header string `json:"header"`
	Size   int64  `json:"size,omitempty"`    // on linux/amd64, in bytes
	Align  int64  `json:"align,omitempty"`   // likewise
	Bare   bool   `json:"typedef,omitempty"` // the name is a typedef's, and the struct has no tag
	Rules
	Members []*Member `json:"members,omitempty"`
}

// C returns the name of s as C writes it.
func (s *Struct) C() string { return Spelled(s.Name, s.Bare) }

// Keyword returns struct or union.
func (s *Struct) Keyword() string {
	keyword, _, _ := strings.Cut(s.Name, " ")
	return keyword
}

// Rules are what a header says about the layout of a struct or union.
type Rules struct {
	Pack    int64 `json:"pack,omitempty"`    // bounds the alignment of the members, in bytes; a packed struct has 1
	Pragma  bool  `json:"pragma,omitempty"`  // because of #pragma pack, not of an attribute
	Aligned int64 `json:"aligned,omitempty"` // the least alignment, of the whole or of a member of it, in bytes
}

// Member is a named member, or an anonymous struct or union.
type Member struct {
	Name   string `json:"name,omitempty"`
	Offset int64  `json:"offset"` // from the start of the enclosing aggregate
	// Type is set for a member of a type with a name; Aggregate ("struct" or
	// "union") and Members for one whose type is written in place.
	Type      *Type     `json:"type,omitempty"`
	Aggregate string    `json:"aggregate,omitempty"`
	Rules               // of an aggregate its own, of a type the member's
	Bits      *Bits     `json:"bits,omitempty"` // set for a bit-field, of type Type
	Members   []*Member `json:"members,omitempty"`
}

// IsFlexible reports whether m is a flexible array, whose length is given by
// the memory behind the struct.
func (m *Member) IsFlexible() bool { return m.Type != nil && m.Type.Kind == Array && m.Type.Len == 0 }

// Bits is where a bit-field is. An unnamed one only takes room.
type Bits struct {
	// At is how many bits lie before it in the enclosing aggregate. Where bytes
	// have their lowest bit first, it counts from there, and otherwise, on s390x,
	// from the highest.
	At    int64 `json:"at"`
	Width int64 `json:"width"`
}

// Macro is an object-like macro with a constant value.
type Macro struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	Type   string `json:"type"` // int, unsigned, unsigned long long, pointer
	Value  int64  `json:"value"`
	// Text is the value of a macro of type char *, as Go quotes it, and of one of
	// type double or float, in hexadecimal.
	Text string `json:"text,omitempty"`
	// Enumerator is the enumerator that the macro is another name of, if any.
	Enumerator string `json:"enumerator,omitempty"`
}

// Typedef is a second name of a type. In the types of all other declarations,
// it is replaced by that type.
type Typedef struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	Type   *Type  `json:"type"`
}

// Variable is a variable that a library exports.
type Variable struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	Type   *Type  `json:"type"`
	Node   string `json:"node,omitempty"` // as that of a Function
}

// Alias is a macro that gives an enum or struct tag a second name.
type Alias struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	Target string `json:"target"`
}

// Unvalued is a macro without a value of its own: a function-like macro, or one
// that stands for other text.
type Unvalued struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	// Body is a digest of the words that the macro stands for, and of its
	// parameters.
	Body string `json:"body,omitempty"`
}

// Export is a function that a library exports.
type Export struct {
	Name string `json:"name"`
	Node string `json:"node"`
}

// Over returns the declarations of a and of below, the snapshot that a builds
// on. If both declare a name, a's declaration is returned.
func (a *API) Over(below *API) *API {
	return &API{
		Version:    a.Version,
		Headers:    over(a.Headers, below.Headers, func(h *Header) string { return h.Name }),
		Functions:  over(a.Functions, below.Functions, func(f *Function) string { return f.Name }),
		Enums:      over(a.Enums, below.Enums, (*Enum).Key),
		Structs:    over(a.Structs, below.Structs, func(s *Struct) string { return s.Name }),
		Macros:     over(a.Macros, below.Macros, func(m *Macro) string { return m.Name }),
		Aliases:    over(a.Aliases, below.Aliases, func(a *Alias) string { return a.Name }),
		Typedefs:   over(a.Typedefs, below.Typedefs, func(t *Typedef) string { return t.Name }),
		Variables:  over(a.Variables, below.Variables, func(v *Variable) string { return v.Name }),
		Unvalued:   over(a.Unvalued, below.Unvalued, func(m *Unvalued) string { return m.Name }),
		Undeclared: over(a.Undeclared, below.Undeclared, func(e *Export) string { return e.Name }),
	}
}

// over returns the items of below whose names no item of above has, followed by
// the items of above: a header comes after the headers that it includes.
func over[T any](above, below []T, name func(T) string) []T {
	taken := map[string]bool{}
	for _, item := range above {
		taken[name(item)] = true
	}
	var all []T
	for _, item := range below {
		if !taken[name(item)] {
			all = append(all, item)
		}
	}
	return append(all, above...)
}

// Load reads a snapshot.
func Load(path string) (*API, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// Parse reads the text of a snapshot.
func Parse(data []byte) (*API, error) {
	a := new(API)
	if err := json.Unmarshal(data, a); err != nil {
		return nil, err
	}
	return a, a.valid()
}

// Marshal returns the snapshot's text.
func (a *API) Marshal() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n\"version\": %q", a.Version)
	if err := writeSection(&b, "headers", a.Headers); err != nil {
		return nil, err
	}
	if err := writeSection(&b, "functions", a.Functions); err != nil {
		return nil, err
	}
	if err := writeSection(&b, "enums", a.Enums); err != nil {
		return nil, err
	}
	if err := writeSection(&b, "structs", a.Structs); err != nil {
		return nil, err
	}
	if err := writeSection(&b, "macros", a.Macros); err != nil {
		return nil, err
	}
	if err := writeSection(&b, "aliases", a.Aliases); err != nil {
		return nil, err
	}
	if len(a.Typedefs) > 0 { // snapshots of rdma-core have none
		if err := writeSection(&b, "typedefs", a.Typedefs); err != nil {
			return nil, err
		}
	}
	if len(a.Variables) > 0 {
		if err := writeSection(&b, "variables", a.Variables); err != nil {
			return nil, err
		}
	}
	if err := writeSection(&b, "unvalued", a.Unvalued); err != nil {
		return nil, err
	}
	if err := writeSection(&b, "undeclared", a.Undeclared); err != nil {
		return nil, err
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}

func writeSection[T any](b *bytes.Buffer, name string, items []T) error {
	fmt.Fprintf(b, ",\n%q: [", name)
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		line, err := marshalLine(item)
		if err != nil {
			return err
		}
		b.Write(line)
	}
	b.WriteString("\n]")
	return nil
}

func marshalLine(item any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(item)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}
