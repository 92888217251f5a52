// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/softroce/internal/link"
)

func init() {
	hostPrograms["crowd"] = crowd
	for name, call := range firstCalls {
		hostPrograms[name] = func(_ []string, stdout, _ io.Writer) int {
			fmt.Fprintln(stdout, call())
			return 0
		}
	}
}

// crowd is as many nodes of a network as there can be, until its input ends.
func crowd(_ []string, stdout, stderr io.Writer) int {
	for range link.Slots - 1 {
		if _, err := link.Reserve(); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
	}
	fmt.Fprintln(stdout, "full")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// firstCalls are calls with which a program may begin.
var firstCalls = map[string]func() error{
	"Use":     func() error { return softroce.Use(softroce.Config{}) },
	"Devices": func() error { _, err := ibverbs.Devices(); return err },
	"Dial": func() error {
		_, err := rdmacm.Dial(context.Background(), "127.0.0.1:1", nil)
		return err
	},
	"Listen": func() error {
		_, err := rdmacm.Listen(context.Background(), "127.0.0.1:0", nil)
		return err
	},
	"NewEventChannel": func() error { _, err := rdmacm.NewEventChannel(); return err },
}

// A process for which the network has no place says so at its first call. One
// of another network does not mind.
func TestNoPlace(t *testing.T) {
	start := func(program, network string) *process.Process {
		cmd := process.Command(t, program)
		cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_NETWORK="+network)
		return process.Start(t, cmd)
	}
	network := fmt.Sprint("crowd ", os.Getpid())
	full := start("crowd", network)
	full.Prints("full\n")
	for name := range firstCalls {
		t.Run(name, func(t *testing.T) {
			p := start(name, network)
			require.Zero(t, p.Wait())
			require.Contains(t, p.Stdout(), "254 processes of this user have the device")
			require.Contains(t, p.Stdout(), "VERBENA_NETWORK")
		})
	}
	p := start("Devices", network+"b")
	require.Zero(t, p.Wait())
	require.Equal(t, "<nil>\n", p.Stdout())
}
