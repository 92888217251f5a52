// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The number of cases, for the last line.
var passed, failed int

func TestMain(m *testing.M) {
	status := m.Run()
	if passed+failed > 0 {
		fmt.Printf("interop: %d passed, %d failed\n", passed, failed)
	}
	os.Exit(status)
}

// meeting is a case: a server and a client, one of them ours.
type meeting struct {
	*testing.T
	server, client side
	at, from       host // of the server and of the client
	ip, fromIP     string
}

// serve starts a server. In its flags and the client's, {S} stands for the
// server's address, {C} for the client's, and {F} for what C calls their
// family.
func (m meeting) serve(name, args string) onHost {
	m.Helper()
	p := m.server.start(m.T, m.at, name, m.expand(args))
	p.listens()
	return p
}

func (m meeting) ask(name, args string) onHost {
	m.Helper()
	return m.client.start(m.T, m.from, name, m.expand(args))
}

func (m meeting) expand(args string) string {
	family := "ip"
	if strings.Contains(m.ip, ":") {
		family = "ipv6"
	}
	return strings.NewReplacer("{S}", m.ip, "{C}", m.fromIP, "{F}", family).Replace(args)
}

// kase is a row of the matrix, or two: one for each direction.
type kase struct {
	name    string
	telling bool // for each run, not only for VERBENA_INTEROP=all
	v6      bool
	mixed   bool // not for two C programs
	apart   bool // only for programs that are not on one host
	run     func(m meeting)
}

// plain is a server and a client that both succeed.
func plain(serverName, serverArgs, clientName, clientArgs string) func(meeting) {
	return func(m meeting) {
		server := m.serve(serverName, serverArgs)
		m.ask(clientName, clientArgs).succeeds()
		server.succeeds()
	}
}

func TestMatrix(t *testing.T) {
	at, from := hosts(t)
	all := os.Getenv("VERBENA_INTEROP") == "all"
	for _, k := range append(cases(), rsocketCases()...) {
		if !k.telling && !all {
			continue
		}
		for _, client := range []side{ours, theirs} {
			m := meeting{server: !client, client: client, at: at, from: from}
			k.row(t, m)
		}
	}
}

// row runs the case, with an address of its family, and prints a row.
func (k kase) row(t *testing.T, m meeting) {
	m.ip, m.fromIP = m.at.v4.String(), m.from.v4.String()
	family := "IPv4"
	if k.v6 {
		m.ip, m.fromIP, family = m.at.v6.String(), m.from.v6.String(), "IPv6"
	}
	name := fmt.Sprintf("%-62s %s  %2v client, %2v server", k.name, family, m.client, m.server)
	begin, ran := time.Now(), false // -run may leave it out
	ok := t.Run(name, func(t *testing.T) {
		m.T, ran = t, true
		k.run(m)
		m.leavesNothing()
	})
	if !ran {
		return
	}
	verdict := "ok  "
	if ok {
		passed++
	} else {
		failed++
		verdict = "FAIL"
	}
	fmt.Printf("%s %s %5.1f s\n", verdict, name, time.Since(begin).Seconds())
}

// patience is how long anything may take that must happen.
const patience = time.Minute

// leavesNothing waits until no host has ids any more, so that the next server's
// are the only ones.
func (m meeting) leavesNothing() {
	m.Helper()
	for _, h := range []host{m.at, m.from} {
		require.Eventually(m.T, func() bool { return !h.listening() && len(h.softNames()) == 0 },
			patience, 20*time.Millisecond, "something listens still")
	}
}
