package rdmacm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// soakEnv holds the soakOrder of this program when it runs as the other host of
// TestSoakWithLoss.
const soakEnv = "VERBENA_RDMACM_SOAK"

// soakOrder is what the other host is to do.
type soakOrder struct {
	Address, Host, Nobody string
	Seed                  uint64
	Long                  time.Duration
}

// soakClients is the other host.
func soakClients(order string) {
	var o soakOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		panic(err) // of this program's own making
	}
	s := &soak{address: o.Address, host: o.Host, nobody: o.Nobody, seed: o.Seed, counts: map[string]int{}}
	s.ctx, s.fail = context.WithCancelCause(context.Background())
	err := s.run(o.Long)
	fmt.Println(s.report())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The soak goes on between two hosts whose network loses packets.
func TestSoakWithLoss(t *testing.T) {
	needTwoHosts(t)
	d := testdevice.Device{Name: "rxe2", IPv4: netip.MustParseAddr("198.51.100.1")}
	require.NoError(t, listenOn(t, d.IPv4).Close()) // librdmacm keeps what it opens for that
	noKernelLeaks(t, d)
	long, seed := soakSettings(t)
	lose(t, 1)
	defer lose(t, 0)
	s := newSoak(t, d.Name, d.IPv4, seed)
	order, err := json.Marshal(soakOrder{s.address, "198.51.100.2", s.nobody, seed, long})
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	clients := exec.CommandContext(t.Context(), "ip", "netns", "exec", "ns1", self)
	clients.Env = append(os.Environ(), soakEnv+"="+string(order))
	out, err := clients.CombinedOutput()
	t.Logf("\n%s", out)
	require.NoError(t, err, "VERBENA_SOAK_SEED=%d", seed)
	s.stop(t)
}
