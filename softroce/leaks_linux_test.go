// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

func init() { hostPrograms["leaker"] = leaker }

// leaker uses its devices, by itself and with the process at an address, closes
// everything, replaces the devices by others, and prints the goroutines that
// are left apart from its own. Those that end soon it waits for.
func leaker(args []string, stdout, stderr io.Writer) int {
	if err := softroce.Use(softroce.Config{}); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	own, _, err := server(ctx)
	for _, address := range []string{own, args[0]} {
		if err == nil {
			_, err = send(ctx, address, "hello")
		}
	}
	if err == nil {
		err = useEach(ctx, own)
	}
	cancel()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	ignored := strings.Split(args[1], " ")
	var left []string
	for began := time.Now(); time.Since(began) < patience; runtime.Gosched() {
		left = goroutines()
		others := false
		for _, g := range left {
			others = others || !has(g, ignored...)
		}
		if !others {
			break
		}
	}
	fmt.Fprint(stdout, strings.Join(left, "\n\n"))
	return 0
}

// useEach connects from each device to an address, and replaces the device by
// another one.
func useEach(ctx context.Context, to string) error {
	devices, err := ibverbs.Devices()
	if err != nil {
		return err
	}
	for i := range devices {
		conn, err := dialFrom(ctx, fmt.Sprintf("127.0.0.%d", 1+i), to)
		if err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
	for _, d := range devices { // which ends the server
		c, err := softroce.FindCard(d.Name)
		if err != nil {
			return err
		}
		if err := errors.Join(c.Remove(), c.Insert()); err != nil {
			return err
		}
	}
	return nil
}

// goroutines returns the stacks of all but the calling one.
func goroutines() []string {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	return strings.Split(strings.TrimSpace(string(all)), "\n\n")[1:]
}

// has reports whether one of the functions is on a stack, as
// goleak.IgnoreAnyFunction looks.
func has(stack string, functions ...string) bool {
	for line := range strings.Lines(stack) {
		for _, f := range functions {
			if at := strings.LastIndex(line, "("); at > 0 && line[:at] == f {
				return true
			}
		}
	}
	return false
}

// The goroutines that stay are those that the document has tests leave out.
func TestGoroutinesThatStay(t *testing.T) {
	page, err := os.ReadFile("../docs/softroce.md")
	require.NoError(t, err)
	var functions []string
	for _, m := range regexp.MustCompile(`goleak\.IgnoreAnyFunction\("([^"]+)"\)`).FindAllStringSubmatch(string(page), -1) {
		functions = append(functions, m[1])
	}
	require.NotEmpty(t, functions)
	address, _ := start(t)
	for name, env := range map[string]string{"one device": "VERBENA_DEVICES=", "two devices": twoDevices} {
		t.Run(name, func(t *testing.T) {
			cmd := process.Command(t, "leaker", address, strings.Join(functions, " "))
			cmd.Env = append(cmd.Env, env)
			p := process.Run(t, cmd)
			require.Zero(t, p.Wait(), p.Stderr())
			left := strings.Split(p.Output(), "\n\n")
			for _, g := range left {
				require.True(t, has(g, functions...), "this one stays, and the document does not say so:\n%s", g)
			}
			for _, f := range functions {
				there := false
				for _, g := range left {
					there = there || has(g, f)
				}
				require.True(t, there, "%s is in the document, and no goroutine has it", f)
			}
		})
	}
}

// A call that fails for its arguments does not start the device's goroutines.
func TestRefusedCallsUseNoDevice(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	const starts = "created by github.com/verbena-go/verbena/softroce/internal/node.(*Node).Start"
	require.ErrorContains(t, softroce.SetAddresses([]netip.Addr{{}}), "which is not a unicast address")
	_, err := softroce.Capture(&failing{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = softroce.Capture(nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NotContains(t, strings.Join(goroutines(), ""), starts)

	stop, err := softroce.Capture(&failing{room: 100}) // begins to use it
	require.NoError(t, err)
	require.NoError(t, stop())
	require.Contains(t, strings.Join(goroutines(), ""), starts)
}
