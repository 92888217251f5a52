// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sort"
	"strings"

	"github.com/verbena-go/verbena/internal/inquiry"
)

// socketPrefix begins the names of the sockets on which engines answer Engines.
const socketPrefix = "@verbena-transfer/"

// publish makes the engine answer Engines until end is called.
func (e *Engine) publish() (end func(), err error) {
	listener, err := net.Listen("unix", fmt.Sprintf("%s%016x", socketPrefix, rand.Uint64()))
	if err != nil {
		return nil, fmt.Errorf("transfer: publish the engine's counts: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		inquiry.Serve(ctx, listener, func() []byte {
			text, _ := json.Marshal(e.stats()) // cannot fail for these types
			return text
		})
	}()
	return func() {
		listener.Close()
		cancel()
		<-ended
	}, nil
}

func isSocket(name string) bool {
	number, ok := strings.CutPrefix(name, socketPrefix)
	return ok && inquiry.IsNumber(number)
}

// programName returns the name of this program, as ps shows it.
func programName() string {
	name, _ := os.ReadFile("/proc/self/comm") // without /proc, the program has no name
	return strings.TrimSuffix(string(name), "\n")
}

// stats returns what the engine tells other processes.
func (e *Engine) stats() EngineStats {
	all := EngineStats{Program: programName(), Devices: e.Devices(), Peers: []PeerStats{}}
	for p := range e.Peers() {
		all.Peers = append(all.Peers, PeerStats{p.Address(), p.dialer != nil, p.Stats()})
	}
	sort.Slice(all.Peers, func(i, j int) bool { return all.Peers[i].Peer < all.Peers[j].Peer })
	return all
}

// Engines returns the open engines of all processes of this user in this
// network namespace whose Config.Publish is set, sorted by process ID, those of
// this process included. It waits until they have answered or ctx ends, but for
// two seconds at most. An engine that has not answered by then, such as that of
// a stopped process, is returned with an Error. Engines fails if ctx has ended
// before, if the system's list of sockets cannot be read, and with an error
// matching errors.ErrUnsupported on systems other than Linux. It may be called
// concurrently.
func Engines(ctx context.Context) ([]EngineStats, error) {
	if err := checkContext("transfer.Engines", ctx); err != nil {
		return nil, err
	}
	answers, err := inquiry.Ask(ctx, isSocket)
	if err != nil {
		return nil, fmt.Errorf("transfer.Engines: %w", err)
	}
	all := []EngineStats{}
	for _, a := range answers {
		var e EngineStats
		if a.Err == nil {
			a.Err = json.Unmarshal(a.Data, &e)
		}
		if a.Err != nil {
			e = EngineStats{Error: a.Err.Error()}
		}
		e.PID = a.PID
		all = append(all, e)
	}
	return all, nil
}
