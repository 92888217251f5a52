// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// body returns the only item that fill appends.
func body(t testing.TB, kind uint8, fill func(*encoder)) []byte {
	t.Helper()
	var e encoder
	fill(&e)
	f := frame{items: e}
	it, ok, err := f.next()
	require.NoError(t, err)
	require.True(t, ok)
	require.Empty(t, f.items)
	require.Equal(t, kind, it.kind)
	return it.body
}

var (
	someHello   = hello{7, 8, []byte("credentials")}
	someWelcome = welcome{token{1, 2}, 9, 10, []address{
		{0, netip.MustParseAddrPort("192.0.2.1:1")}, {15, netip.MustParseAddrPort("[2001:db8::1]:65535")},
	}, []byte("answer")}
	someOffer = offer{id: 1, length: 2, access: ReadAccess, name: "name", keys: [maxDevices]key{0: {true, 4, 5, 6}, 15: {true, 255, 8, 9}}}
)

func TestMessages(t *testing.T) {
	g := greeting{kindData, 3, 4, 5, token{6}}
	decoded, err := decodeGreeting(append(g.encode(), make([]byte, 100)...))
	require.NoError(t, err)
	require.Equal(t, g, decoded)

	h, err := decodeHello(body(t, itemHello, someHello.append))
	require.NoError(t, err)
	require.Equal(t, someHello, h)

	w, err := decodeWelcome(body(t, itemWelcome, someWelcome.append))
	require.NoError(t, err)
	require.Equal(t, someWelcome, w)

	o, err := decodeOffer(body(t, itemOffer, someOffer.append))
	require.NoError(t, err)
	require.Equal(t, someOffer, o)

	tok, received, err := decodeResume(body(t, itemResume, func(e *encoder) { appendResume(e, token{1}, 2) }))
	require.NoError(t, err)
	require.Equal(t, token{1}, tok)
	require.EqualValues(t, 2, received)
}

// fuzzRoundTrip checks that a body is refused as a breach of the protocol, or
// that what it says is said again by the body that append makes of it.
func fuzzRoundTrip[T any](f *testing.F, decode func([]byte) (T, error), again func(T) []byte, seeds ...[]byte) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decode(b)
		if err != nil {
			require.ErrorIs(t, err, errProtocol)
			return
		}
		w, err := decode(again(v))
		require.NoError(t, err)
		require.True(t, reflect.DeepEqual(v, w), "%v, and then %v", v, w)
	})
}

func appended(fill func(*encoder)) []byte {
	var e encoder
	fill(&e)
	return e[itemHeader:]
}

func FuzzGreeting(f *testing.F) {
	fuzzRoundTrip(f, decodeGreeting, greeting.encode, greeting{kindControl, 1, 2, 3, token{4}}.encode(), nil)
}

func FuzzHello(f *testing.F) {
	fuzzRoundTrip(f, decodeHello, func(h hello) []byte { return appended(h.append) }, appended(someHello.append), nil)
}

func FuzzWelcome(f *testing.F) {
	fuzzRoundTrip(f, decodeWelcome, func(w welcome) []byte { return appended(w.append) }, appended(someWelcome.append), nil)
}

func FuzzOffer(f *testing.F) {
	fuzzRoundTrip(f, decodeOffer, func(o offer) []byte { return appended(o.append) }, appended(someOffer.append), nil)
}

func FuzzResume(f *testing.F) {
	f.Add(appended(func(e *encoder) { appendResume(e, token{1}, 2) }))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := decodeResume(b); err != nil {
			require.ErrorIs(t, err, errProtocol)
		}
	})
}

// A stream takes any frame without a panic, and hands over each item once.
func FuzzFrame(f *testing.F) {
	one := make(encoder, frameHeader)
	someOffer.append(&one)
	f.Add([]byte(one))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newStream()
		items := uint64(0)
		err := s.take(b, func(item) error { items++; return nil })
		if err != nil {
			require.ErrorIs(t, err, errProtocol)
		}
		require.Equal(t, s.receivedCount(), items)
	})
}
