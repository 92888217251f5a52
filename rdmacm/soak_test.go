package rdmacm_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// soakWorkers are how many dial at the same time.
const soakWorkers = 6

// soakPatience bounds every single thing that a soak does.
const soakPatience = time.Minute

// slotSize is how much of the server's memory each worker has for itself.
const slotSize = 64 << 10

// soak is a server with all that its clients do with it, which are in the same
// process or, on a lossy way, in another one, and in others that get killed.
type soak struct {
	ctx     context.Context // ends when something has failed
	fail    context.CancelCauseFunc
	address string // of the server
	host    string // of the clients
	nobody  string // an address without a listener
	seed    uint64

	ln     *rdmacm.Listener // of the server, as is what follows
	pd     *ibverbs.PD
	memory *ibverbs.MR // a slot for each worker
	server sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// check ends the soak with the first error.
func (s *soak) check(who string, err error) {
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", who, err))
	}
}

// deed is what a worker does with one connection, or with what would be one.
type deed struct {
	name   string
	weight int // how often, beside others
	do     func(s *soak, w *worker) error
}

// worker does one deed after the other. What it does depends on the seed only,
// not on how long anything takes.
type worker struct {
	*rand.Rand
	n, deeds int
	ctx      context.Context // of the deed under way
}

func (s *soak) work(n int, end time.Time) {
	w := &worker{Rand: rand.New(rand.NewPCG(s.seed, uint64(n))), n: n}
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	for ; time.Now().Before(end) && s.ctx.Err() == nil; w.deeds++ {
		pick, i := w.IntN(total), 0
		for ; pick >= deeds[i].weight; i++ {
			pick -= deeds[i].weight
		}
		var cancel context.CancelFunc
		w.ctx, cancel = context.WithTimeout(s.ctx, soakPatience)
		s.check(fmt.Sprintf("worker %d, deed %d, %s", n, w.deeds, deeds[i].name), deeds[i].do(s, w))
		cancel()
		s.count(deeds[i].name)
	}
}

// setting returns what an environment variable says.
func setting[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	require.NoError(t, err, name)
	return value
}

// run lets all workers do their deeds for some time, and returns the first error.
func (s *soak) run(long time.Duration) error {
	end := time.Now().Add(long)
	var workers sync.WaitGroup
	for n := range soakWorkers {
		workers.Go(func() { s.work(n, end) })
	}
	workers.Wait()
	return context.Cause(s.ctx)
}

// report returns how often what was done.
func (s *soak) report() string {
	var lines []string
	for _, name := range slices.SortedFunc(maps.Keys(s.counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.counts[b], s.counts[a]), strings.Compare(a, b))
	}) {
		lines = append(lines, fmt.Sprintf("%6d %s", s.counts[name], name))
	}
	return strings.Join(lines, "\n")
}

// soakSettings are for how long, and with which lots.
func soakSettings(t *testing.T) (long time.Duration, seed uint64) {
	t.Helper()
	long = setting(t, "VERBENA_SOAK", time.Minute, time.ParseDuration)
	seed = setting(t, "VERBENA_SOAK_SEED", uint64(time.Now().UnixNano()), func(s string) (uint64, error) {
		return strconv.ParseUint(s, 10, 64)
	})
	t.Logf("VERBENA_SOAK=%v VERBENA_SOAK_SEED=%d", long, seed)
	return long, seed
}

// newSoak starts a server at an address of a device.
func newSoak(t *testing.T, device string, host netip.Addr, seed uint64) *soak {
	t.Helper()
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	i := slices.IndexFunc(devices, func(c *ibverbs.Device) bool { return c.Name() == device })
	pd, err := devices[i].AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	memory, err := pd.Alloc(soakWorkers*slotSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	ln := listenOn(t, host)
	s := &soak{
		address: ln.Addr().String(), host: host.String(), nobody: host.String() + ":7", seed: seed,
		ln: ln, pd: pd, memory: memory, counts: map[string]int{},
	}
	s.ctx, s.fail = context.WithCancelCause(t.Context())
	s.server.Go(s.serve)
	return s
}

// stop ends the server, and fails the test if anything has failed.
func (s *soak) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.ln.Close())
	s.server.Wait()
	require.NoError(t, context.Cause(s.ctx), "VERBENA_SOAK_SEED=%d", s.seed)
}

// Connections are made, used by one and by many goroutines, refused, canceled,
// attacked, closed and killed at random, for VERBENA_SOAK, with VERBENA_SOAK_SEED.
// No byte is lost, nothing is left, and nothing hangs. All the time a request is
// on its way to a host that never answers.
func TestSoak(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	long, seed := soakSettings(t)
	unanswered := askNobody(t, d)
	s := newSoak(t, d.Name, d.IPv4, seed)
	if s.run(long) == nil {
		unanswered()
	}
	s.stop(t)
	t.Log("\n" + s.report())
}
