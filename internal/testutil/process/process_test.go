// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/object"
)

func TestMain(m *testing.M) {
	BecomeMain(program)
	m.Run()
}

// program repeats its input, and ends as its argument says.
func program() {
	how := flag.String("end", "", "")
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: program [-end how]") }
	flag.Parse()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("in:", in.Text())
	}
	fmt.Fprintln(os.Stderr, "ending")
	switch *how {
	case "badly":
		os.Exit(3)
	case "leak":
		new(object.Object).Init("forgotten")
	case "signal":
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt)
		fmt.Println("waiting")
		<-interrupted
	}
}

func TestProcess(t *testing.T) {
	p := StartMain(t)
	_, err := fmt.Fprintln(p.Stdin, "hello")
	require.NoError(t, err)
	require.Equal(t, "in: hello", p.Prints("in: .*"))
	require.Equal(t, "hello", p.Prints("in: (.*)"))
	require.NoError(t, p.Stdin.Close())
	p.Says("ending")
	require.Zero(t, p.Wait())
	require.Equal(t, "in: hello\n", p.Stdout())
	require.Equal(t, "ending\n", p.Stderr())
	require.Equal(t, "in: hello\nending\n", p.Output())
	require.True(t, p.Ended())
	p.Kill()
	require.Zero(t, p.Wait(), "it had ended before")
}

func TestLine(t *testing.T) {
	p := Start(t, exec.Command("sh", "-c", "echo one; echo two; exec cat"))
	require.Equal(t, "one", p.Line())
	require.Equal(t, "two", p.Line())
	_, err := fmt.Fprintln(p.Stdin, "three")
	require.NoError(t, err)
	require.Equal(t, "three", p.Line())
	require.False(t, p.Ended())
	p.Kill()
	require.Equal(t, -1, p.Wait())
}

func TestStatus(t *testing.T) {
	require.Equal(t, 3, RunMain(t, "-end", "badly").Wait())
	left := RunMain(t, "-end", "leak")
	require.Equal(t, exitLeaked, left.Wait())
	require.Contains(t, left.Stderr(), "1 objects were not closed:\nforgotten")

	p := StartMain(t, "-end", "signal")
	require.NoError(t, p.Stdin.Close())
	p.Prints("waiting")
	p.Signal(os.Interrupt)
	require.Zero(t, p.Wait())

	p = StartMain(t)
	p.Signal(os.Kill)
	require.Equal(t, -1, p.Wait())
}

func TestUnknownProgram(t *testing.T) {
	p := Run(t, Command(t, "other"))
	require.Equal(t, exitUnknown, p.Wait())
	require.Equal(t, "this test binary has no program \"other\"\n", p.Stderr())
}

// A test that runs alone has the environment, and another process.
func TestAlone(t *testing.T) {
	const parent = "VERBENA_TEST_PARENT"
	if !Alone(t, parent+"="+strconv.Itoa(os.Getpid())) {
		return
	}
	require.Equal(t, strconv.Itoa(os.Getppid()), os.Getenv(parent))
}

// A program of the folder cmd is built, and is itself.
func TestCmd(t *testing.T) {
	p := Run(t, Cmd(t, "rping", "-h"))
	require.Zero(t, p.Wait())
	require.Contains(t, p.Stdout(), "rping -s ")
	_, err := Build("no-such")
	require.ErrorContains(t, err, " no-such: exit status 1\n")
}

func TestMisused(t *testing.T) { Misused(t, "-x", "-end") }
