// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Choice adds a flag whose value is one of several words. words maps each word
// to the value that *value gets. initial is the word for *value without the
// flag.
func Choice[T any](f *Flags, value *T, name, letter, initial, usage string, words map[string]T) {
	c := &choice[T]{value, words, initial}
	*value = words[initial]
	f.VarP(c, name, letter, fmt.Sprintf("%s: %s", usage, c.list()))
}

// choice is the value of a flag added by Choice.
type choice[T any] struct {
	value *T
	words map[string]T
	word  string
}

func (c *choice[T]) Set(word string) error {
	value, known := c.words[word]
	if !known {
		return fmt.Errorf("expected one of %s", c.list())
	}
	*c.value, c.word = value, word
	return nil
}

func (c *choice[T]) list() string { return strings.Join(slices.Sorted(maps.Keys(c.words)), ", ") }

func (c *choice[T]) String() string { return c.word }

func (c *choice[T]) Type() string { return "word" }
