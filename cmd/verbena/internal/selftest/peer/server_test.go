// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

// A server has nothing for strangers, for those without a session and for a
// second client, and they do not disturb the first.
func TestStrangers(t *testing.T) {
	if err := softroce.Use(softroce.Config{}); err != nil {
		t.Skip(err) // this program cannot call C
	}
	device := testdevice.Require(t)
	server := &Server{}
	require.NoError(t, server.Listen(t.Context(), device.IPv4.String()+":0"))
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	at := server.Addr().String()
	client, err := Join(t.Context(), device.IPv4, at)
	require.NoError(t, err)
	_, err = Join(t.Context(), device.IPv4, at)
	require.ErrorContains(t, err, "another client has a session")

	changed := client.Request(Echo, 0, 40)
	changed[39]++
	for name, data := range map[string][]byte{
		"nothing":            nil,
		"garbage":            []byte("\xffgarbage"),
		"short":              []byte(hello),
		"no session":         greeting{client.token + 1, Memory, 0, byte(greetingLen)}.bytes(),
		"token 0":            greeting{0, Memory, 0, byte(greetingLen)}.bytes(),
		"unknown service":    greeting{client.token, services, 0, byte(greetingLen)}.bytes(),
		"length too small":   greeting{client.token, Echo, 0, 3}.bytes(),
		"length too large":   append(client.Request(Echo, 0, 0)[:greetingLen-1], 255),
		"changed":            changed,
		"no such figure":     greeting{client.token, Figures, 99, byte(greetingLen)}.bytes(),
		"too long an answer": greeting{client.token, Refused, 255, byte(greetingLen)}.bytes(),
	} {
		_, err := rdmacm.Dial(t.Context(), at, &rdmacm.Config{PrivateData: data})
		require.ErrorContains(t, err, "refused by the peer's program", name)
	}

	// Programs that accept or refuse all are no servers.
	for _, answer := range []func(*rdmacm.Request) error{
		func(r *rdmacm.Request) error {
			conn, err := r.Accept(t.Context(), nil)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
		func(r *rdmacm.Request) error { return r.Reject(nil) },
		func(r *rdmacm.Request) error { return r.Reject([]byte(ErrStranger.Error())) }, // another version
	} {
		other, err := rdmacm.Listen(t.Context(), device.IPv4.String()+":0", nil)
		require.NoError(t, err)
		answered := make(chan error, 1)
		go func() {
			request, err := other.Accept(t.Context())
			if err == nil {
				err = answer(request)
			}
			answered <- err
		}()
		_, err = Join(t.Context(), device.IPv4, other.Addr().String())
		require.ErrorIs(t, err, ErrOther)
		require.NoError(t, <-answered)
		require.NoError(t, other.Close())
	}

	conn, err := client.Dial(t.Context(), Memory, 0, 0, rdmacm.Config{MessageSize: MessageSize})
	require.NoError(t, err)
	out, err := conn.Alloc(16, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	n := copy(out.Bytes(), Sum(MemorySize-1, 2))
	require.NoError(t, conn.Send(t.Context(), out.Sub(0, n)))
	_, err = conn.Receive(t.Context())
	require.Error(t, err) // the server ends a connection that asks for what it has not lent
	require.NoError(t, conn.Close())

	require.NoError(t, client.Probe(t.Context()))
	require.NoError(t, client.Close())
	cancel()
	require.NoError(t, <-served)
	require.NoError(t, server.Close())
	require.Empty(t, ibverbs.OpenObjects())
}

// What a request says is what a server reads, and zeros may follow.
func TestGreeting(t *testing.T) {
	for _, want := range []greeting{{1, Echo, 2, byte(greetingLen)}, {1 << 63, Told, 255, MaxRequest}} {
		got, err := parse(append(want.bytes(), make([]byte, 7)...))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	seen, ok := parseSeen(append(Seen{1, 2, 3, 4, 5, 6}.bytes(), append(Pattern(9), 0, 0)...), 9)
	require.True(t, ok)
	require.Equal(t, Seen{1, 2, 3, 4, 5, 6}, seen)
	for _, b := range [][]byte{nil, make([]byte, SeenLen+8), append(make([]byte, SeenLen), Pattern(10)...)} {
		_, ok := parseSeen(b, 9)
		require.False(t, ok)
	}
}
