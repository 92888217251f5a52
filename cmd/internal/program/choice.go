// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Choice adds a flag for one of several words, each of which stands for
// something. *value is what the initial word stands for without the flag.
func Choice[T any](f *Flags, value *T, name, letter, initial, usage string, words map[string]T) {
	c := &choice[T]{value, words, initial}
	*value = words[initial]
	f.VarP(c, name, letter, fmt.Sprintf("%s: %s", usage, c.list()))
}

// choice is a flag's value that a word stands for.
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
