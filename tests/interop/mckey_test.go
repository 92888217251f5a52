package interop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// mckey's members join a group and wait for some messages; some seconds later
// the sender sends as many.
var (
	ourMckey   = program{"Go", true, "mckey"}
	theirMckey = program{"C", false, "mckey"}
)

const group = "239.86.69.68"

// mckeyMain is as much of mckey as the tests need. When C's members have joined
// cannot be seen, so that the sender sends until it is interrupted.
func mckeyMain(args []string, stdout io.Writer) int {
	flags := flag.NewFlagSet("mckey", flag.ContinueOnError)
	group := flags.String("m", "", "multicast address")
	bind := flags.String("b", "", "bind address")
	isSender := flags.Bool("s", false, "sender")
	sendOnly := flags.Bool("o", false, "join to send only")
	if flags.Parse(args) != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := func() error {
		addr, err := netip.ParseAddr(*group)
		if err != nil {
			return err
		}
		x := &exchange{count: 10, size: 100}
		c, err := rdmacm.JoinGroup(ctx, addr, &rdmacm.GroupConfig{LocalAddr: *bind, SendOnly: *sendOnly, Setup: x.setUp})
		if err != nil {
			return err
		}
		defer c.Close()
		fmt.Fprintln(stdout, "joined")
		if !*isSender {
			_, err := x.receive(ctx)
			return err
		}
		for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
			if err := x.send(ctx, c, c.Peer()); err != nil {
				if errors.Is(err, context.Canceled) {
					return nil
				}
				return err
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(stdout, "mckey:", err)
		return 1
	}
	fmt.Fprintln(stdout, "data transfers complete")
	return 0
}

func TestMckey(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ members, sender program }{{ourMckey, theirMckey}, {theirMckey, ourMckey}} {
		for _, mode := range []string{"-s", "-s -o"} {
			t.Run(fmt.Sprintf("%s sender %s", pair.sender.name, mode), func(t *testing.T) {
				args := []string{"-m", group, "-b", d.IPv4.String()}
				var members []*process
				for range 2 {
					m := pair.members.start(t, args...)
					if pair.members.self { // C's waits some seconds
						m.prints("joined")
					}
					members = append(members, m)
				}
				args = append(args, strings.Fields(mode)...)
				var sender *process
				if pair.sender.self {
					sender = pair.sender.start(t, args...)
				}
				for _, m := range members {
					// C's destroys its queue pair at once, with what the kernel has not
					// sent by then: of 10 messages, Linux 7.2 may send few.
					m.eventually("has received enough", func() bool {
						if !pair.sender.self && !m.ended() {
							sender = pair.sender.run(t, append(args, "-C", "1000")...)
						}
						return m.ended()
					})
				}
				if pair.sender.self {
					interrupt(sender)
				}
				for _, r := range append(members, sender) {
					require.Zero(t, r.wait())
					require.Contains(t, r.stdout.String(), "data transfers complete")
				}
			})
		}
	}
}
