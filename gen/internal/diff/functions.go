// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

func (c *comparer) functions() {
	nodes := hasNodes(c.from) && hasNodes(c.to)
	pairs(c.from.Functions, c.to.Functions, func(f *api.Function) string { return f.Name },
		func(name string, a, b *api.Function) {
			switch {
			case a == nil:
				c.add(compatible, Change{Kind: FunctionAdded, Name: name, To: declaration(b)})
			case b == nil:
				bad, why := c.removed(a)
				c.add(bad, Change{Kind: FunctionRemoved, Name: name, From: declaration(a), Why: why})
			default:
				c.function(name, a, b)
				if nodes {
					c.node(name, a, b)
				}
			}
		})
}

// hasNodes reports whether the libraries were available when a snapshot was
// made, so that it has version nodes.
func hasNodes(a *api.API) bool {
	return len(a.Undeclared) > 0 || slices.ContainsFunc(a.Functions, func(f *api.Function) bool { return f.Node != "" })
}

// removed returns the effect of the removal of f from the headers.
func (c *comparer) removed(f *api.Function) (severity, string) {
	node := c.leftNode(f.Name)
	switch {
	case f.Inline != nil:
		return source, "it was inline, so compiled programs have it"
	case hasNodes(c.from) && f.Node == "":
		return source, "the library did not export it, so no program was linked with it"
	case !hasNodes(c.to):
		return abi, "programs that call it cannot be compiled, nor started unless the library still exports it: the snapshot was made without it"
	case node == "":
		return abi, "programs that call it cannot be linked or started"
	case f.Node != "" && f.Node != node:
		return abi, "the library exports it under another node, " + node
	}
	return source, "the library still exports it, so compiled programs start"
}

// leftNode returns the node under which the new library still exports a
// function that the new headers no longer declare as exported. It returns "" if
// the library does not export it.
func (c *comparer) leftNode(name string) string {
	for _, e := range c.to.Undeclared {
		if e.Name == name {
			return e.Node
		}
	}
	return ""
}

func (c *comparer) function(name string, a, b *api.Function) {
	c.header(name, a.Header, b.Header)
	if from, to := prototype(a), prototype(b); from != to {
		change := Change{Kind: PrototypeChanged, Name: name, From: from, To: to, Why: "arguments or result are passed in another way"}
		bad := abi
		if samePassed(a.Type, b.Type) {
			change.Why, bad = "every value is passed as before", source
		}
		c.add(bad, change)
	}
	if from, to := strings.Join(a.Params, ", "), strings.Join(b.Params, ", "); from != to && len(a.Params) == len(b.Params) {
		c.add(compatible, Change{
			Kind: ParametersRenamed, Name: name, From: from, To: to, Why: "the conventions name parameters",
		})
	}
	switch {
	case a.Inline == nil && b.Inline != nil:
		change := Change{Kind: NowInline, Name: name, From: "exported", To: body(b), Why: "the library need not have it any more"}
		left := c.leftNode(name)
		if left != "" {
			change.Why = "the library still exports it under the node " + left
		}
		c.add(abi.when(left == "" || a.Node != "" && a.Node != left), change)
	case a.Inline != nil && b.Inline == nil:
		c.add(compatible, Change{Kind: NowExported, Name: name, From: body(a), To: "exported"})
	case a.Inline != nil && body(a) != body(b):
		c.add(compatible, Change{Kind: InlineChanged, Name: name, From: body(a), To: body(b)})
	case a.Inline != nil && differ(a.Inline.Body, b.Inline.Body):
		c.add(compatible, Change{Kind: BodyChanged, Name: name, Why: "still " + body(b)})
	}
}

// differ reports whether two digests differ. If one is empty, because its
// snapshot is too old to have digests, it returns false.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

func (c *comparer) node(name string, a, b *api.Function) {
	change := Change{Kind: NodeChanged, Name: name, From: a.Node, To: b.Node}
	const why = "a program that was linked with the old node asks for it"
	switch {
	case a.Node == b.Node, a.Inline == nil && b.Inline != nil: // function reports that a function is now inline
	case a.Node == "":
		change.Kind = NodeGained
		c.add(compatible, change)
	case b.Node == "":
		change.Kind, change.Why = NodeLost, why
		c.add(abi, change)
	default:
		change.Why = why
		c.add(abi, change)
	}
}

func prototype(f *api.Function) string { return f.Type.C(f.Name) }

// declaration returns the prototype of a function, with its body or version
// node.
func declaration(f *api.Function) string {
	if f.Inline != nil {
		return prototype(f) + ", " + body(f)
	}
	if f.Node != "" {
		return prototype(f) + ", " + f.Node
	}
	return prototype(f)
}

// body describes the body of an inline function.
func body(f *api.Function) string {
	switch {
	case f.Inline.Call == "":
		return "inline with logic of its own"
	case f.Inline.Guard != "":
		return "inline, calls " + f.Inline.Call + " of " + f.Inline.Guard
	}
	return "inline, calls " + f.Inline.Call
}
