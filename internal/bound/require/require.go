// SPDX-License-Identifier: Apache-2.0

// Package require has those functions of testify's package of that name that
// the generated tests call, so that they need no other module.
package require

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// fail ends the test. message is a format and its arguments, and may be empty.
func fail(t testing.TB, what string, message []any) {
	t.Helper()
	if len(message) > 0 {
		what = fmt.Sprintf(fmt.Sprint(message[0]), message[1:]...) + ": " + what
	}
	t.Fatal(what)
}

// NoError requires that err is nil.
func NoError(t testing.TB, err error, message ...any) {
	t.Helper()
	if err != nil {
		fail(t, err.Error(), message)
	}
}

// ErrorContains requires that the text of err has the part want.
func ErrorContains(t testing.TB, err error, want string, message ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		fail(t, fmt.Sprintf("the error is %v, which does not contain %q", err, want), message)
	}
}

// Equal requires that got is what was expected.
func Equal(t testing.TB, want, got any, message ...any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		fail(t, difference(want, got), message)
	}
}

// difference describes how got differs from want: of long texts, the first line
// that does.
func difference(want, got any) string {
	w, isText := want.(string)
	g, ok := got.(string)
	if isText && ok && strings.Contains(w, "\n") {
		wants, gots := strings.Split(w, "\n"), strings.Split(g, "\n")
		for i, line := range wants {
			if i >= len(gots) || gots[i] != line {
				return fmt.Sprintf("line %d: want %q, got %q", i+1, line, append(gots, make([]string, i+1)...)[i])
			}
		}
	}
	return fmt.Sprintf("want %#v, got %#v", want, got)
}

// True requires that a condition is true.
func True(t testing.TB, ok bool, message ...any) {
	t.Helper()
	if !ok {
		fail(t, "it is false", message)
	}
}

// Zero requires that v is the zero value of its type.
func Zero(t testing.TB, v any, message ...any) {
	t.Helper()
	if v != nil && !reflect.ValueOf(v).IsZero() {
		fail(t, fmt.Sprintf("%#v is not zero", v), message)
	}
}

// Len requires that a slice or a map has n elements.
func Len(t testing.TB, v any, n int, message ...any) {
	t.Helper()
	if have := reflect.ValueOf(v).Len(); have != n {
		fail(t, fmt.Sprintf("it has %d elements, not %d", have, n), message)
	}
}

// NotEmpty requires that a slice or a map has elements.
func NotEmpty(t testing.TB, v any, message ...any) {
	t.Helper()
	if reflect.ValueOf(v).Len() == 0 {
		fail(t, "it is empty", message)
	}
}

// LessOrEqual requires that v is at most limit.
func LessOrEqual[T cmp.Ordered](t testing.TB, v, limit T, message ...any) {
	t.Helper()
	if v > limit {
		fail(t, fmt.Sprintf("%v is more than %v", v, limit), message)
	}
}
