// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// A program that can open no more files gets an error that says so from every
// call that opens a file. The first steps of the call may still open some.
func TestTooManyOpenFiles(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	stop := serve(t, ln)
	cmd := process.Command(t, "opener", d.Name, d.IPv4.String(), ln.Addr().String())
	limited := exec.Command("sh", append([]string{"-c", `ulimit -n 100 && exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)...)
	limited.Env = cmd.Env
	p := process.Run(t, limited)
	require.Zero(t, p.Wait(), p.Output())
	stop()
}

// opener is the program that can open no more files.
func opener(args []string) error {
	device, err := ibverbs.Open(args[0])
	if err != nil {
		return err
	}
	if _, err := rdmacm.Devices(); err != nil { // loads the library
		return err
	}
	failed := map[string]int{}
	// With more, the device in user space has too few for the peer's process.
	most := 5
	if testdevice.Soft() {
		most = 1
	}
	for spare := range most {
		var files []*os.File
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				break
			}
			files = append(files, f)
		}
		for _, f := range files[:spare] {
			_ = f.Close()
		}
		here := netip.AddrPortFrom(netip.MustParseAddr(args[1]), 0).String()
		for call, f := range map[string]func() (interface{ Close() error }, error){
			"Listen": func() (interface{ Close() error }, error) { return rdmacm.Listen(context.Background(), here, nil) },
			"ListenDatagram": func() (interface{ Close() error }, error) {
				return rdmacm.ListenDatagram(context.Background(), here, nil)
			},
			"Dial":            func() (interface{ Close() error }, error) { return rdmacm.Dial(context.Background(), args[2], nil) },
			"NewEventChannel": func() (interface{ Close() error }, error) { return rdmacm.NewEventChannel() },
			"Open":            func() (interface{ Close() error }, error) { return ibverbs.Open(args[0]) },
			"CreateCompChannel": func() (interface{ Close() error }, error) {
				ch, err := device.CreateCompChannel()
				if err == nil && ch.Raw().Fd < 0 { // it takes a file only when a call needs it
					err = sleep(device, ch)
				}
				return ch, err
			},
		} {
			object, err := f()
			switch {
			case err == nil:
				if err := object.Close(); err != nil {
					return err
				}
			case strings.Contains(err.Error(), " of at most 100 files open; see ulimit -n"):
				failed[call]++
			case errors.Is(err, syscall.EMFILE):
				return fmt.Errorf("%s with %d files left gives no hint: %w", call, spare, err)
			default:
				fmt.Println(call, "with", spare, "files left:", err)
			}
		}
		for _, f := range files[spare:] {
			_ = f.Close()
		}
	}
	for _, call := range []string{"Listen", "ListenDatagram", "Dial", "NewEventChannel", "Open", "CreateCompChannel"} {
		if failed[call] == 0 {
			return fmt.Errorf("%s does not say that files are wanting", call)
		}
	}
	return nil
}

// sleep waits for an event of the channel, and closes it.
func sleep(device *ibverbs.Device, ch *ibverbs.CompChannel) error {
	defer ch.Close()
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch})
	if err != nil {
		return err
	}
	defer cq.Close()
	_, err = cq.Sleep(make([]ibverbs.WC, 1), 1)
	return err
}
