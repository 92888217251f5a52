"""Runs modules of pyverbs' tests, and appends what becomes of each test to a file, as JSON.

usage: runner.py RESULTS FOLDER MODULE...
"""
import json
import multiprocessing
import os
import random
import sys
import unittest


class Results(unittest.TestResult):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def put(self, test, outcome, reason=''):
        with open(self.path, 'a') as f:
            f.write(json.dumps({'test': test.id(), 'outcome': outcome, 'reason': reason}) + '\n')

    def startTest(self, test):
        super().startTest(test)
        random.seed(test.id())  # the tests choose attributes and flags at random
        self.put(test, 'started')

    def addSuccess(self, test):
        self.put(test, 'passed')

    def addSkip(self, test, reason):
        self.put(test, 'skipped', reason)

    def addFailure(self, test, err):
        self.put(test, 'failed', self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err:
            self.put(test, 'failed', self._exc_info_to_string(err, subtest))

    def addExpectedFailure(self, test, err):
        self.put(test, 'passed')

    def addUnexpectedSuccess(self, test):
        self.put(test, 'failed', 'unexpected success')


def spawn_peers():
    """The peers of a test of connections are processes that are forked when the device is in use
    already, and then do not have it. Here they are programs that are started, with the test sent to
    them, but for what belongs to the run."""
    import tests.base as base
    spawn = multiprocessing.get_context('spawn')
    multiprocessing.set_executable(os.environ['VERBENA_SUITE_PYTHON'])
    base.mp.get_context = lambda method=None: spawn
    base.RDMACMBaseTest.__getstate__ = lambda self: {k: v for k, v in vars(self).items() if k != '_outcome'}


def main():
    path, folder, modules = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.chdir(folder)
    sys.path.insert(0, folder)                    # for args_parser
    sys.path.insert(0, os.path.dirname(folder))   # for the package
    sys.argv[1:] = ['--dev', 'soft0', '--port', '1']
    from args_parser import parser
    parser.parse_args()
    spawn_peers()
    unittest.TestLoader().loadTestsFromNames(['tests.' + m for m in modules]).run(Results(path))


if __name__ == '__main__':
    main()
