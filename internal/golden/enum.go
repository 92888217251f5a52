package golden

import (
	"encoding"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/enum"
)

// Enum checks that parse reverses String, and UnmarshalText MarshalText: for
// every name and its value, for values next to these and for the largest. A
// value that prints other has no way back from String; other is empty where
// there is no such text.
func Enum[T interface {
	~int32 | ~uint32
	String() string
	MarshalText() ([]byte, error)
}](t *testing.T, parse func(string) (T, error), names []enum.Name, other string,
) {
	t.Helper()
	require.NotEmpty(t, names)
	reverse := func(v T) {
		var back T
		text, err := v.MarshalText()
		require.NoError(t, err)
		require.NoError(t, any(&back).(encoding.TextUnmarshaler).UnmarshalText(text))
		require.Equal(t, v, back)
		if v.String() == other {
			return
		}
		got, err := parse(v.String())
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	for _, n := range names {
		got, err := parse(n.Name)
		require.NoError(t, err)
		require.Equal(t, T(n.Value), got, n.Name)
		reverse(T(n.Value))
		reverse(T(n.Value + 1))
	}
	reverse(math.MaxInt32)
	_, err := parse("no such name")
	require.ErrorContains(t, err, "no such name")
}
