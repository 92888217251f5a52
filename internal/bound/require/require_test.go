// SPDX-License-Identifier: Apache-2.0

package require

import (
	"errors"
	"fmt"
	"testing"

	testify "github.com/stretchr/testify/require"
)

// recorder is a test that notes how it fails.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatal(args ...any) { r.said = fmt.Sprint(args...) }

func TestRequire(t *testing.T) {
	for name, tt := range map[string]struct {
		check func(t testing.TB)
		want  string
	}{
		"no error":      {func(t testing.TB) { NoError(t, nil) }, ""},
		"error":         {func(t testing.TB) { NoError(t, errors.New("bad"), "open %s", "x") }, "open x: bad"},
		"text":          {func(t testing.TB) { ErrorContains(t, errors.New("is bad"), "bad") }, ""},
		"other text":    {func(t testing.TB) { ErrorContains(t, errors.New("good"), "bad") }, `the error is good, which does not contain "bad"`},
		"no text":       {func(t testing.TB) { ErrorContains(t, nil, "bad") }, `the error is <nil>, which does not contain "bad"`},
		"equal":         {func(t testing.TB) { Equal(t, []int{1}, []int{1}) }, ""},
		"different":     {func(t testing.TB) { Equal(t, 1, 2, "n") }, "n: want 1, got 2"},
		"of other type": {func(t testing.TB) { Equal(t, 1, int8(1)) }, "want 1, got 1"},
		"lines":         {func(t testing.TB) { Equal(t, "a\nb\nc\n", "a\nx\nc\n") }, `line 2: want "b", got "x"`},
		"fewer lines":   {func(t testing.TB) { Equal(t, "a\nb\nc", "a") }, `line 2: want "b", got ""`},
		"true":          {func(t testing.TB) { True(t, true) }, ""},
		"false":         {func(t testing.TB) { True(t, false, "a%d", 1) }, "a1: it is false"},
		"zero":          {func(t testing.TB) { Zero(t, 0) }, ""},
		"not zero":      {func(t testing.TB) { Zero(t, 3) }, "3 is not zero"},
		"length":        {func(t testing.TB) { Len(t, []byte{1}, 1) }, ""},
		"other length":  {func(t testing.TB) { Len(t, []byte{1}, 2) }, "it has 1 elements, not 2"},
		"elements":      {func(t testing.TB) { NotEmpty(t, []byte{1}) }, ""},
		"none":          {func(t testing.TB) { NotEmpty(t, []byte{}) }, "it is empty"},
		"less":          {func(t testing.TB) { LessOrEqual(t, 1, 1) }, ""},
		"more":          {func(t testing.TB) { LessOrEqual(t, 2, 1) }, "2 is more than 1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := new(recorder)
			tt.check(r)
			testify.Equal(t, tt.want, r.said)
		})
	}
}
