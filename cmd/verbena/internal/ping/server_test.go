// SPDX-License-Identifier: Apache-2.0

package ping

import (
	"bytes"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

// printed is what a server prints. It tells where it listens.
type printed struct {
	mu    sync.Mutex
	text  bytes.Buffer
	first chan string // gets what is written first
	once  sync.Once
}

func (p *printed) Write(b []byte) (int, error) {
	p.once.Do(func() { p.first <- string(b) })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// A client that is not ping is refused, and is not one of the clients that the
// server waits for.
func TestStrangers(t *testing.T) {
	if err := softroce.Use(softroce.Config{}); err != nil {
		t.Skip(err) // this program cannot call C
	}
	out := &printed{first: make(chan string, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- (&server{out: program.Output{Stdout: out}, count: 1}).run(t.Context(), "127.0.0.1:0")
	}()
	var at netip.AddrPort
	select {
	case line := <-out.first:
		at = netip.MustParseAddrPort(line[len("listening on ") : len(line)-1])
	case err := <-ended:
		require.FailNow(t, "the server has ended", err)
	}
	for _, data := range [][]byte{nil, []byte("\xffgarbage"), greeting(maxSize + 1)} {
		_, err := rdmacm.Dial(t.Context(), at.String(), &rdmacm.Config{PrivateData: data})
		require.ErrorContains(t, err, "refused by the peer's program")
	}
	o := &options{host: at.Addr().String(), port: int(at.Port()), size: 64, count: 3, timeout: time.Minute, quiet: true}
	require.NoError(t, o.ping(t.Context(), program.Output{Stdout: io.Discard}))
	require.NoError(t, <-ended)
	require.Regexp(t, `(?s)^listening on \S+\n(\S+ refused: the client is not verbena ping of this version\n){3}\S+ connected, messages of 64 bytes\n\S+ ended, 3 messages answered\n$`,
		out.text.String())
}
