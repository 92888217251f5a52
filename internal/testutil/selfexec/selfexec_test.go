package selfexec

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/object"
)

func TestMain(m *testing.M) { Main(m, program) }

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
	p := Start(t)
	_, err := fmt.Fprintln(p.Stdin, "hello")
	require.NoError(t, err)
	require.Equal(t, "in: hello", p.Prints("in: .*"))
	require.Equal(t, "hello", p.Prints("in: (.*)"))
	require.NoError(t, p.Stdin.Close())
	p.Says("ending")
	require.Zero(t, p.Wait())
	require.Equal(t, "in: hello\n", p.Stdout())
	require.Equal(t, "ending\n", p.Stderr())
}

func TestStatus(t *testing.T) {
	require.Equal(t, 3, Run(t, "-end", "badly").Wait())
	left := Run(t, "-end", "leak")
	require.Equal(t, exitLeaked, left.Wait())
	require.Contains(t, left.Stderr(), "1 objects were not closed:\nforgotten")

	p := Start(t, "-end", "signal")
	require.NoError(t, p.Stdin.Close())
	p.Prints("waiting")
	p.Signal(os.Interrupt)
	require.Zero(t, p.Wait())

	p = Start(t)
	p.Signal(os.Kill)
	require.Equal(t, -1, p.Wait())
}

func TestMisused(t *testing.T) { Misused(t, "-x", "-end") }
