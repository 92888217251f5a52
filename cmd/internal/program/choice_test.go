// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func newChooser() (*Program, *int) {
	chosen := new(int)
	return &Program{
		Name: "chooser", Usage: "chooser [-n number]", Text: "Chooses.", Run: succeed,
		Flags: func(f *Flags) {
			Choice(f, chosen, "number", "n", "one", "`number` to choose", map[string]int{"one": 1, "two": 2, "ten": 10})
		},
	}, chosen
}

func TestChoice(t *testing.T) {
	for args, want := range map[string]int{"": 1, "-n one": 1, "-ntwo": 2, "--number=ten": 10, "-n ten -n two": 2} {
		p, chosen := newChooser()
		require.NoError(t, p.Parse(strings.Fields(args)), args)
		require.Equal(t, want, *chosen, args)
	}
	for _, args := range [][]string{{"-n", "three"}, {"-n", ""}, {"-n", "ONE"}, {"-n", "1"}} {
		p, chosen := newChooser()
		require.ErrorContains(t, p.Parse(args), "expected one of one, ten, two", args)
		require.Equal(t, 1, *chosen, "left alone")
	}
	p, _ := newChooser()
	var stdout, stderr bytes.Buffer
	require.Zero(t, p.Main([]string{"-h"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "-n, --number number   number to choose: one, ten, two (default one)\n")
}
