// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"reflect"
	"slices"
	"sync"

	"modernc.org/cc/v4"
)

// tokensOf returns the tokens of nodes in the order of the text. cc.NodeTokens
// does the same for one node. It takes three times as long, because it looks
// for the fields of every node anew.
func tokensOf(nodes ...cc.Node) []cc.Token {
	var found tokens
	for _, n := range nodes {
		found.add(reflect.ValueOf(n))
	}
	slices.SortFunc(found, func(a, b cc.Token) int { return cmp.Compare(a.Seq(), b.Seq()) })
	return found
}

type tokens []cc.Token

// add adds the tokens of a node, to which the argument points.
func (t *tokens) add(node reflect.Value) {
	if node.Kind() != reflect.Pointer || node.IsNil() {
		return
	}
	node = node.Elem()
	for _, i := range nodeFields(node.Type()) {
		switch field := node.Field(i); field.Kind() {
		case reflect.Struct:
			if token := field.Addr().Interface().(*cc.Token); token.Seq() != 0 {
				*t = append(*t, *token)
			}
		case reflect.Interface:
			t.add(field.Elem())
		default:
			t.add(field)
		}
	}
}

// knownFields stores the results of nodeFields, by type.
var knownFields sync.Map

// nodeFields returns the indexes of the fields that hold tokens and nodes.
func nodeFields(node reflect.Type) []int {
	if known, ok := knownFields.Load(node); ok {
		return known.([]int)
	}
	var indexes []int
	for i := range node.NumField() {
		field := node.Field(i)
		if field.IsExported() && field.Type.Implements(reflect.TypeFor[cc.Node]()) {
			indexes = append(indexes, i)
		}
	}
	knownFields.Store(node, indexes)
	return indexes
}
