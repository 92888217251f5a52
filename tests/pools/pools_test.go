// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

// conns is how many connections each pool has when the server restarts.
const conns = 40

// A client runs queries on connections of a pool. It calls dial for each
// connection.
type client struct {
	query func(ctx context.Context) error
	close func()
}

type dialer func(ctx context.Context, address string) (net.Conn, error)

// transports are what is compared.
var transports = map[string]struct {
	listen func(t *testing.T, address string) (net.Listener, error)
	dial   dialer
}{
	"tcp": {
		func(_ *testing.T, address string) (net.Listener, error) { return net.Listen("tcp", address) },
		func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
	},
	"rdma": {
		func(_ *testing.T, address string) (net.Listener, error) { return rsocket.Listen("rdma", address) },
		func(ctx context.Context, address string) (net.Conn, error) {
			return new(rsocket.Dialer).DialContext(ctx, "rdma", address)
		},
	},
}

// A server restarts while clients have idle connections. None of the next
// queries may fail, as none does over TCP.
func TestServerRestarts(t *testing.T) {
	for name, tt := range map[string]struct {
		serve func(conn net.Conn, query func())
		open  func(t *testing.T, address string, dial dialer) client
	}{
		"go-redis":            {serveRedis, openRedis},
		"go-sql-driver/mysql": {serveMySQL, openMySQL},
		"pgxpool":             {servePostgres, openPgxPool},
		"pgx/stdlib":          {servePostgres, openPgxSQL},
	} {
		for transport, via := range transports {
			t.Run(name+"/"+transport, func(t *testing.T) {
				d := cmtest.NeedDevice(t)
				ln, err := via.listen(t, netip.AddrPortFrom(d.IPv4, 0).String())
				require.NoError(t, err)
				address := ln.Addr().String()
				first := start(ln, tt.serve, conns)
				defer first.stop()
				c := tt.open(t, address, via.dial)
				defer c.close()
				ctx := cmtest.Bounded(t)
				errs := make(chan error, conns)
				for range conns {
					go func() { errs <- c.query(ctx) }()
				}
				for range conns {
					require.NoError(t, cmtest.Take(t, errs, "a query"))
				}
				require.NoError(t, first.stop())

				ln, err = via.listen(t, address)
				require.NoError(t, err)
				second := start(ln, tt.serve, 1)
				defer second.stop()
				failed := 0
				for range conns {
					if err := c.query(ctx); err != nil {
						t.Log(err)
						failed++
					}
				}
				require.Zero(t, failed, "queries failed of %d", conns)
				c.close()
				require.NoError(t, second.stop())
			})
		}
	}
}

// A server answers queries on connections of a listener.
type server struct {
	ln      net.Listener
	queries *barrier
	all     sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	stopped bool
}

// start starts a server that answers the first queries when there are so many,
// so that as many connections have one.
func start(ln net.Listener, serve func(conn net.Conn, query func()), together int) *server {
	s := &server{ln: ln, queries: newBarrier(together), conns: map[net.Conn]bool{}}
	s.all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			stopped := s.stopped
			s.conns[conn] = true
			s.mu.Unlock()
			if stopped {
				_ = conn.Close()
				return
			}
			s.all.Go(func() {
				defer conn.Close()
				serve(conn, s.queries.arrive)
			})
		}
	})
	return s
}

// stop closes all connections, as a process does that ends in an orderly way.
func (s *server) stop() error {
	errs := []error{s.ln.Close()}
	s.mu.Lock()
	s.stopped = true
	for conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	s.mu.Unlock()
	s.all.Wait()
	for i, err := range errs {
		if errors.Is(err, net.ErrClosed) { // the client was faster
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// A barrier opens, for good, when so many have arrived.
type barrier struct {
	mu   sync.Mutex
	left int
	open chan struct{}
}

func newBarrier(n int) *barrier { return &barrier{left: n, open: make(chan struct{})} }

// arrive waits until the barrier is open.
func (b *barrier) arrive() {
	b.mu.Lock()
	if b.left--; b.left == 0 {
		close(b.open)
	}
	b.mu.Unlock()
	<-b.open
}

func openRedis(_ *testing.T, address string, dial dialer) client {
	c := redis.NewClient(&redis.Options{
		Addr: address, PoolSize: conns, Protocol: 2, DisableIdentity: true, ReadTimeout: cmtest.Patience, MaxRetries: -1,
		Dialer: func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) },
	})
	return client{func(ctx context.Context) error { return c.Ping(ctx).Err() }, func() { _ = c.Close() }}
}

func openMySQL(t *testing.T, address string, dial dialer) client {
	network := t.Name() // is registered for good
	mysql.RegisterDialContext(network, mysql.DialContextFunc(dial))
	config := mysql.NewConfig()
	config.Net, config.Addr, config.User, config.Logger = network, address, "user", &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	return openSQL(sql.OpenDB(connector))
}

func openSQL(db *sql.DB) client {
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return client{func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, "DO 1")
		return err
	}, func() { _ = db.Close() }}
}

// pgxConfig returns a config for the server of these tests.
func pgxConfig(t *testing.T, address string, dial dialer) *pgx.ConnConfig {
	config, err := pgx.ParseConfig("postgres://user@" + address + "/db?sslmode=disable")
	require.NoError(t, err)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.DialFunc = func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) }
	return config
}

// openPgxPool opens a pool that looks before each use; by default, it does so
// for connections that were idle for a second.
func openPgxPool(t *testing.T, address string, dial dialer) client {
	config, err := pgxpool.ParseConfig("postgres://user@" + address + "/db?sslmode=disable")
	require.NoError(t, err)
	config.ConnConfig = pgxConfig(t, address, dial)
	config.MaxConns = conns
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	return client{func(ctx context.Context) error {
		_, err := pool.Exec(ctx, "DO 1")
		return err
	}, sync.OnceFunc(pool.Close)}
}

// openPgxSQL opens a database/sql pool, which looks at connections that were
// idle for a second by reading with a deadline.
func openPgxSQL(t *testing.T, address string, dial dialer) client {
	c := openSQL(stdlib.OpenDB(*pgxConfig(t, address, dial), stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool {
		return true
	})))
	return c
}
