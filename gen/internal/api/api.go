// SPDX-License-Identifier: Apache-2.0

// Package api is the model of a header snapshot. A snapshot describes the
// declarations in rdma-core's public headers, without the text of the headers.
// A snapshot is a JSON file with one declaration per line, so that diffs are
// readable.
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
	// Absent holds the headers that were not found, and were read as if they
	// were empty. Only drafts have it.
	Absent []*Absent
	// Places says where declarations are, such as infiniband/verbs.h:71, by kind
	// and name. Only drafts have it.
	Places map[string]string
}

// Header is one of rdma-core's headers, or a kernel header that one of them
// includes.
type Header struct {
	Name string `json:"name"` // name in #include
	// Included is true if the header is read: because it is bound, or because a
	// bound header includes it.
	Included bool `json:"included,omitempty"`
}

// Absent is a header that another one includes and that was not found.
type Absent struct {
	Name   string `json:"name"`             // name in #include
	Header string `json:"header,omitempty"` // header that includes it; empty for the umbrella file
	Line   int    `json:"line"`             // where Header does so
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
	// order, such as qp->context->ops.post_send. It is empty if the body
	// does anything else.
	Call string `json:"call,omitempty"`
	// Guard is set if the body first checks that a verbs_context has the
	// operation. It is the C expression for the ibv_context, such as
	// qp->context, and Call begins with vctx, the variable with the
	// verbs_context.
	Guard string `json:"guard,omitempty"`
	// Body is a digest of the body's words, after preprocessing.
	Body string `json:"body,omitempty"`
}

// Enum is an enumeration. An anonymous one has no name.
type Enum struct {
	Name   string       `json:"name,omitempty"`
	Header string       `json:"header"`
	Signed bool         `json:"signed,omitempty"`
	Size   int64        `json:"size,omitempty"`    // size in bytes; 0 means 4
	Bare   bool         `json:"typedef,omitempty"` // whether the name is that of a typedef and the enum has no tag
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

// Struct is a struct or union. One without members is opaque.
type Struct struct {
	Name   string `json:"name"` // name with the keyword, such as struct ibv_qp
	Header string `json:"header"`
	Size   int64  `json:"size,omitempty"`    // size on linux/amd64, in bytes
	Align  int64  `json:"align,omitempty"`   // alignment on linux/amd64, in bytes
	Bare   bool   `json:"typedef,omitempty"` // whether the name is that of a typedef and the struct has no tag
	Rules
	Members []*Member `json:"members,omitempty"`
}

// C returns the name of s in C code: without the keyword if it is that of a
// typedef.
func (s *Struct) C() string { return Spelled(s.Name, s.Bare) }

// Keyword returns "struct" or "union".
func (s *Struct) Keyword() string {
	keyword, _, _ := strings.Cut(s.Name, " ")
	return keyword
}

// Rules holds what a header says about the layout of a struct, a union or a
// member.
type Rules struct {
	Pack    int64 `json:"pack,omitempty"`    // maximum alignment of the members, in bytes; 1 if the struct is packed
	Pragma  bool  `json:"pragma,omitempty"`  // whether Pack comes from #pragma pack rather than from an attribute
	Aligned int64 `json:"aligned,omitempty"` // minimum alignment of the struct or member, in bytes
}

// Member is a named member, or an anonymous struct or union.
type Member struct {
	Name   string `json:"name,omitempty"`
	Offset int64  `json:"offset"` // in bytes, from the start of the struct or union around it
	// Type is the member's type. It is nil for a nested struct or union,
	// whose Aggregate ("struct" or "union") and Members are set instead.
	Type      *Type     `json:"type,omitempty"`
	Aggregate string    `json:"aggregate,omitempty"`
	Rules               // rules of the nested struct or union, or of the member
	Bits      *Bits     `json:"bits,omitempty"` // place of a bit-field; nil for other members
	Members   []*Member `json:"members,omitempty"`
}

// IsFlexible reports whether m is a flexible array, whose length is given by
// the memory behind the struct.
func (m *Member) IsFlexible() bool { return m.Type != nil && m.Type.Kind == Array && m.Type.Len == 0 }

// Bits is the place of a bit-field. A bit-field without a name only takes
// space.
type Bits struct {
	// At is the number of bits before the bit-field in the struct or union
	// around it. The first bit of a byte is the lowest one; on s390x, it is
	// the highest one.
	At    int64 `json:"at"`
	Width int64 `json:"width"`
}

// Macro is an object-like macro with a constant value.
type Macro struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	Type   string `json:"type"` // type of the value, such as int, unsigned long long, pointer or string
	Value  int64  `json:"value"`
	// Text is the value of a string, in Go's quotes, or of a double or
	// float, in hexadecimal. For other macros, Value is set instead.
	Text string `json:"text,omitempty"`
	// Enumerator is set if the macro is another name of an enumerator.
	Enumerator string `json:"enumerator,omitempty"`
}

// Typedef is a second name of a type. The types of all other declarations have
// the type itself in place of the typedef.
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
	Node   string `json:"node,omitempty"` // see Function.Node
}

// Alias is a macro that gives an enum or struct tag a second name.
type Alias struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	Target string `json:"target"`
}

// Unvalued is a macro without a value: a function-like macro, or one that
// stands for text that is not a constant.
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

// Over returns the declarations of a and of below, the snapshot of headers that
// a's headers include. If both declare a name, the result has a's declaration.
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

// Place returns where a declaration is: its line, if the snapshot is a draft,
// and otherwise its header.
func (a *API) Place(name Name, header string) string {
	if place := a.Places[name.String()]; place != "" {
		return place
	}
	return header
}

// over returns the items of below whose names no item of above has, followed by
// the items of above. So a header comes after the headers that it includes.
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
	if len(a.Absent) > 0 {
		if err := writeSection(&b, "absent", a.Absent); err != nil {
			return nil, err
		}
	}
	if len(a.Places) > 0 {
		places, err := json.Marshal(a.Places)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, ",\n\"places\": %s", places)
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
