// SPDX-License-Identifier: Apache-2.0

//go:build linux

package applications

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// network is how the programs reach each other.
type network struct {
	host, from     string // addresses of server and client
	server, client starter
	listens        func(server *process.Process) bool // whether the server listens on the device
}

// starter returns a command that starts a program.
type starter func(args ...string) *exec.Cmd

// plain starts a program without the device in user space.
func plain(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = os.Environ()
	return cmd
}

var tcp = network{"127.0.0.1", "127.0.0.1", plain, plain, nil}

func listensOnDevice(server *process.Process) bool {
	return ownnetwork.Listens(server.Pid(), os.Getenv("VERBENA_NETWORK"))
}

// apart returns a network of two network namespaces, in which programs are
// started by start. It fails where namespaces cannot be made.
func apart(t *testing.T, start starter) (*network, error) {
	names := [2]string{fmt.Sprintf("server%d", os.Getpid()), fmt.Sprintf("client%d", os.Getpid())}
	ip := func(line string) error {
		if output, err := exec.Command("sh", "-c", "ip "+line).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, output)
		}
		return nil
	}
	for _, name := range names {
		if err := ip("netns add " + name); err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			if err := ip("netns del " + name); err != nil {
				t.Error(err)
			}
		})
	}
	if err := ip(fmt.Sprintf("link add link0 netns %s type veth peer name link0 netns %s", names[0], names[1])); err != nil {
		return nil, err
	}
	var addresses [2]string
	var starters [2]starter
	for i, name := range names {
		addresses[i] = fmt.Sprintf("198.18.0.%d", i+1)
		for _, line := range []string{"link set lo up", "address add " + addresses[i] + "/24 dev link0", "link set link0 up"} {
			if err := ip("-n " + name + " " + line); err != nil {
				return nil, err
			}
		}
		starters[i] = func(args ...string) *exec.Cmd {
			cmd := start(args...)
			inside := exec.Command("ip", append([]string{"netns", "exec", name}, cmd.Args...)...)
			if inside.Err = errors.Join(inside.Err, cmd.Err); inside.Err == nil {
				inside.Args[4] = cmd.Path
			}
			inside.Env = cmd.Env
			return inside
		}
	}
	return &network{addresses[0], addresses[1], starters[0], starters[1], listensOnDevice}, nil
}
