#compdef opsq
# Completion of opsq for zsh. Written by tools/papers.py; do not edit it here.
# It runs nothing when it is loaded; `opsq completion` gives submission ids, metadata keys, consumers and strategies.

_opsq_ask() { # KIND TITLE [OPTION…]: offer what the daemon knows
  local kind=$1 title=$2 line
  local -a found lines
  shift 2
  local program=${opsq_line[1]/#\~\//$HOME/}
  whence -- $program >/dev/null || return 1
  lines=("${(@f)$($program completion $kind -- "${(@)opsq_line[2,CURRENT_OPSQ-1]}" 2>/dev/null)}")
  for line in $lines; do
    found+=("${${line%%$'\t'*}//:/\\:}${${(M)line%%$'\t'*}:+:${line#*$'\t'}}")
  done
  (( $#found )) && _describe -V -t $kind $title found "$@"
}
_opsq_ids() { _opsq_ask ids submission }
_opsq_open() { _opsq_ask open submission }
_opsq_ended() { _opsq_ask ended submission }
_opsq_consumers() { _opsq_ask consumers consumer }
_opsq_strategies() { _opsq_ask strategies strategy }
_opsq_explained() { _opsq_ask explained 'strategy or submission' }
_opsq_examples() { _opsq_ask examples example }
_opsq_keys() { _opsq_ask keys 'metadata key' }
_opsq_pair() {
  if compset -P '*='; then
    _message value
  else
    _opsq_ask keys 'metadata key' -S = -q
  fi
}

_opsq() {
  local curcontext=$curcontext state line ret=1
  local -a opsq_line=("${(Q@)words}") flags verbs
  local -i CURRENT_OPSQ=CURRENT
  typeset -A opt_args
  flags=(
    '--json[Print JSON on stdout, also on failure.]'
    '(-q --quiet)-q[Print no progress and no remarks.]'
    '(-q --quiet)--quiet[Print no progress and no remarks.]'
    '--utc[Show times in UTC, not in local time.]'
    '--state-dir=[The folder of the daemon\: database, socket, log, content.]:DIR:_files -/'
    '--socket=[The daemon'\''s Unix socket.]:PATH:_files'
    '--address[Where the daemon listens, or several shards with commas between them, or @FILE with one on each line; the token comes from --token-file or OPSQ_TOKEN.]'
    '--token-file=[A file that holds the token for --address.]:FILE:_files'
    '--tls-ca-file=[The CA that signed the certificate of a daemon at a tls\:// address.]:FILE:_files'
    '--tls-client-cert-file=[This client'\''s certificate, if the daemon requires one.]:FILE:_files'
    '--tls-client-key-file=[Its private key, if not in the same file.]:FILE:_files'
    '--version[Print the version and exit.]'
    '--help[Print help and exit; also after a verb.]'
  )
  _arguments -C -s -S $flags '1: :->verb' '*::argument:->argument' && return 0
  case $state in
    verb)
      verbs=(
        'start:Start the daemon and return when it is ready; if one is already running, do nothing and exit 0.'
        'stop:Stop the daemon: hand out nothing more, wait for reserved chunks, and end it; exits 0 even if none runs.'
        'restart:Stop the daemon, if one runs, and start it again: consumers reconnect and keep what they hold.'
        'drain:Take no new submissions, and work off what is there.'
        'status:Show what the daemon is doing: chunks by state, consumers, sizes; exits 4 when none answers.'
        'top:Follow the queue on one screen: backlog, rate, what is blocked, what runs where, consumers, latest failures.'
        'metrics:Print metrics of the daemon once, as Prometheus reads them; exits 4 when none answers.'
        'gateway:Serve HTTP in front of the daemon.'
        'submit:Submit files or stdin as chunks; prints only the id of the submission.'
        'wait:Wait until submissions have ended; exits 1 if one failed, was cancelled or expired, 3 for an unknown id, 124 on timeout. Conditions select among those that are unfinished now.'
        'results:Write the results of a submission to stdout, in chunk order.'
        'show:Show one submission: its state, counts, metadata, rules and recent failures; or the history of a chunk.'
        'list:List submissions, newest first: id, state, chunks, completed, dead, submitted, metadata, title.'
        'cancel:Cancel submissions: nothing more of them is handed out, and running chunks lose their reservations.'
        'rm:Remove finished submissions, with their results and content.'
        'outbox:Print the tables of an outbox, through which work commits with your own transactions.'
        'relay:Hand the rows of an outbox over to the daemon.'
        'dead:List dead chunks, show everything about one, give them new attempts, or give up on them.'
        'run:Run a program on each chunk of the inputs, and write the results to stdout in input order: the whole round in one line.'
        'consume:Run a program for each chunk: the chunk is its stdin, its stdout is the result, exit 0 completes.'
        'reserve:Reserve chunks as leases; prints one handle per line, exits 3 when nothing is free.'
        'read:Write the bytes of a reserved chunk to stdout.'
        'complete:Complete reserved chunks; durable when it returns.'
        'fail:Report failed attempts: the chunks are retried after a back-off, or die when their attempts are used up.'
        'release:Release reserved chunks without counting an attempt.'
        'extend:Move the deadline of reserved chunks to a full lease from now.'
        'spark:Move data with PySpark, and process chunks on its executors.'
        'history:List the history of chunks, export it to files for other programs, or delete it.'
        'events:Print what has happened, oldest first: cursor, time, kind, subject, sentence; with --json, a document a line.'
        'notify:Run programs and call webhooks for events; list, retry or drop deliveries that were given up.'
        'explain:Show how a strategy is served: its arms, their SQL and plans; or why a submission or chunk is not running.'
        'pause:Stop handing out some submissions until they are resumed; reserved chunks continue.'
        'resume:End a pause, named by the same pairs; exits 3 if there is none, 7 when an operator set it and --operator is missing.'
        'limit:Limit concurrent chunks per value, or how many start per unit of time; for every strategy and consumer.'
        'limits:List pauses, limits and weights: rule, target, value, current use, by whom, since when.'
        'weight:Set the weight in Fair of a value of a key: 3 is served three times as often as 1, from its next turn on.'
        'audit:List administrative acts, newest first: time, who, origin, connection, request, fields.'
        'schedule:List, add, edit, show, pause, resume, trigger, backfill or remove schedules.'
        'queue:List, create, show or remove the queues of records that a gateway serves.'
        'token:List, create or revoke the tokens of TCP clients.'
        'config:Print every setting: its name, its value, and where the value came from.'
        'doctor:Look for problems on this machine, and say what to do about each; exits 5 if something is wrong.'
        'check:Check the database and its invariants, also while no daemon runs; exits 6 if something is damaged.'
        'backup:Copy the database to a file, also while work continues; the content of chunks and large results is not in it.'
        'restore:Bring a replicated queue back on this machine, when its own is lost; starts no daemon.'
        'vacuum:Return unused pages of the database to the file system; work continues while it runs.'
        'demo:Run a demonstration: submit Python'\''s own source files, have consumers convert them to upper case, collect and check the results.'
        'examples:List the examples, print one, or copy some to a folder.'
        'completion:Print the completion script for a shell; an installation as root already has it in place.'
      )
      _describe -t verbs verb verbs && ret=0
      ;;
    argument)
      curcontext=${curcontext%:*}-$words[1]:
      case $words[1] in
        start)
          _arguments -s -S $flags \
            '--foreground[Run in the foreground, for a service manager; also log to stderr.]' \
            '--socket-mode=[File mode of the socket.]:MODE: ' \
            '--shard=[Number of this daemon among the shards of a queue, 0 to 1023, which its file keeps; default that of the file.]:N: ' \
            '--listen=[HOST\:PORT where the daemon listens on TCP, besides its socket; empty\: no TCP.]:HOST\:PORT: ' \
            '--listen-force[Allow `listen` without TLS on an address others can reach.]' \
            '--tls-cert-file=[The daemon'\''s certificate\: `listen` then speaks TLS only.]:FILE:_files' \
            '--tls-key-file=[Its private key, if not in the same file.]:FILE:_files' \
            '--tls-client-ca-file=[Require a certificate signed by this CA from TCP clients.]:FILE:_files' \
            '--client-token-file=[A token for all producers and consumers over TCP; optional.]:FILE:_files' \
            '--tokens-file=[Named tokens with their roles, stored as hashes; see opsq token.]:FILE:_files' \
            '--store=[Where content is stored\: file\://, s3\://, gs\:// or az\:// URL; default content/ in the state folder.]:URL:_files -/' \
            '--replicate-to=[Where the queue is copied to while it is written\: as `store`.]:URL: ' \
            '--replicate-every-s=[How often what is new is copied.]:D: ' \
            '--replicate-lease-s=[How long no other daemon may take the replica over.]:D: ' \
            '--ack=[When a submit is acknowledged\: after its commit, or once its copy is known to be in the replica.]:committed|replicated:(committed replicated)' \
            '--durability=[Durable\: synced before each reply; normal\: a power failure may lose the latest work.]:durable|normal:(durable normal)' \
            '--allow-network-fs[Allow the state folder on a network file system, with slower locking.]' \
            '--frame-limit-bytes=[Maximum size of a protocol frame.]:SIZE: ' \
            '--chunk-limit-bytes=[Maximum size of a chunk.]:SIZE: ' \
            '--connection-limit=[Maximum number of connections.]:N: ' \
            '--log-level=[Log level\: debug, info, warning, error.]:debug|info|warning|error:(debug info warning error)' \
            '--log-bytes=[Size at which the log is rotated.]:SIZE: ' \
            '--log-count=[How many rotated logs are kept.]:N: ' \
            '--trace-sql[Log each SQL statement with its cost.]' \
            '--drain-s=[How long a stopping daemon waits for reserved chunks.]:D: ' \
            '--reservation-s=[Length of a reservation.]:D: ' \
            '--heartbeat-s=[How often a connection sends a heartbeat.]:D: ' \
            '--heartbeat-misses=[How many missed heartbeats end a connection.]:N: ' \
            '--max-attempts=[Failures until a chunk is dead.]:N: ' \
            '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
            '--backoff-base-s=[Delay after the first failure of a chunk.]:D: ' \
            '--backoff-factor=[Factor by which the delay grows with each failure.]:N: ' \
            '--backoff-max-s=[Maximum delay after a failure.]:D: ' \
            '--max-backlog-chunks=[Maximum number of unfinished chunks; submissions beyond it are refused; 0\: no limit.]:N: ' \
            '--min-free-bytes=[Disk space that must stay free; with less, submissions are refused.]:SIZE: ' \
            '--history-days=[How many days history is kept.]:N: ' \
            '--history-rows=[Rows of history that are kept.]:N: ' \
            '--finished-days=[How many days finished submissions and their content are kept.]:N: ' \
            '--event-days=[How many days events are kept.]:N: ' \
            '--event-rows=[Events that are kept.]:N: ' \
            '--restart-lease-s=[How long a restarted daemon waits for consumers to come back.]:D: ' && ret=0
          ;;
        stop)
          _arguments -s -S $flags \
            '--drain=[How long to wait for what is reserved.]:D: ' && ret=0
          ;;
        restart)
          _arguments -s -S $flags \
            '--drain=[How long to wait for what is reserved.]:D: ' \
            '--socket-mode=[File mode of the socket.]:MODE: ' \
            '--shard=[Number of this daemon among the shards of a queue, 0 to 1023, which its file keeps; default that of the file.]:N: ' \
            '--listen=[HOST\:PORT where the daemon listens on TCP, besides its socket; empty\: no TCP.]:HOST\:PORT: ' \
            '--listen-force[Allow `listen` without TLS on an address others can reach.]' \
            '--tls-cert-file=[The daemon'\''s certificate\: `listen` then speaks TLS only.]:FILE:_files' \
            '--tls-key-file=[Its private key, if not in the same file.]:FILE:_files' \
            '--tls-client-ca-file=[Require a certificate signed by this CA from TCP clients.]:FILE:_files' \
            '--client-token-file=[A token for all producers and consumers over TCP; optional.]:FILE:_files' \
            '--tokens-file=[Named tokens with their roles, stored as hashes; see opsq token.]:FILE:_files' \
            '--store=[Where content is stored\: file\://, s3\://, gs\:// or az\:// URL; default content/ in the state folder.]:URL:_files -/' \
            '--replicate-to=[Where the queue is copied to while it is written\: as `store`.]:URL: ' \
            '--replicate-every-s=[How often what is new is copied.]:D: ' \
            '--replicate-lease-s=[How long no other daemon may take the replica over.]:D: ' \
            '--ack=[When a submit is acknowledged\: after its commit, or once its copy is known to be in the replica.]:committed|replicated:(committed replicated)' \
            '--durability=[Durable\: synced before each reply; normal\: a power failure may lose the latest work.]:durable|normal:(durable normal)' \
            '--allow-network-fs[Allow the state folder on a network file system, with slower locking.]' \
            '--frame-limit-bytes=[Maximum size of a protocol frame.]:SIZE: ' \
            '--chunk-limit-bytes=[Maximum size of a chunk.]:SIZE: ' \
            '--connection-limit=[Maximum number of connections.]:N: ' \
            '--log-level=[Log level\: debug, info, warning, error.]:debug|info|warning|error:(debug info warning error)' \
            '--log-bytes=[Size at which the log is rotated.]:SIZE: ' \
            '--log-count=[How many rotated logs are kept.]:N: ' \
            '--trace-sql[Log each SQL statement with its cost.]' \
            '--drain-s=[How long a stopping daemon waits for reserved chunks.]:D: ' \
            '--reservation-s=[Length of a reservation.]:D: ' \
            '--heartbeat-s=[How often a connection sends a heartbeat.]:D: ' \
            '--heartbeat-misses=[How many missed heartbeats end a connection.]:N: ' \
            '--max-attempts=[Failures until a chunk is dead.]:N: ' \
            '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
            '--backoff-base-s=[Delay after the first failure of a chunk.]:D: ' \
            '--backoff-factor=[Factor by which the delay grows with each failure.]:N: ' \
            '--backoff-max-s=[Maximum delay after a failure.]:D: ' \
            '--max-backlog-chunks=[Maximum number of unfinished chunks; submissions beyond it are refused; 0\: no limit.]:N: ' \
            '--min-free-bytes=[Disk space that must stay free; with less, submissions are refused.]:SIZE: ' \
            '--history-days=[How many days history is kept.]:N: ' \
            '--history-rows=[Rows of history that are kept.]:N: ' \
            '--finished-days=[How many days finished submissions and their content are kept.]:N: ' \
            '--event-days=[How many days events are kept.]:N: ' \
            '--event-rows=[Events that are kept.]:N: ' \
            '--restart-lease-s=[How long a restarted daemon waits for consumers to come back.]:D: ' && ret=0
          ;;
        drain)
          _arguments -s -S $flags \
            '--undo[Take new submissions again.]' \
            '--to=[Move what is unfinished to the daemon at this address.]:ADDRESS: ' \
            '--all[With --to, move also what has ended.]' \
            '--to-token-file=[The token for that daemon, if it is another one.]:FILE:_files' \
            '--patience=[With --to, revoke reservations that last longer than this.]:D: ' \
            '(-w --wait)-w[Return when nothing is unfinished.]' \
            '(-w --wait)--wait[Return when nothing is unfinished.]' \
            '(-t --timeout)-t+[Give up waiting after this long, with exit 124.]:D: ' \
            '(-t --timeout)--timeout=[Give up waiting after this long, with exit 124.]:D: ' \
            '--give-up=[Drop what is moving here from a daemon that is gone for good.]:SOURCE: ' \
            '--force[With --give-up, drop also complete copies\: there may be no others.]' && ret=0
          ;;
        status)
          _arguments -s -S $flags \
            '(-w --watch)-w[Refresh until Ctrl-C.]' \
            '(-w --watch)--watch[Refresh until Ctrl-C.]' \
            '--by=[Also count per value of this metadata key.]:KEY:_opsq_keys' \
            '--interval=[How often --watch refreshes.]:D: ' && ret=0
          ;;
        top)
          _arguments -s -S $flags \
            '*-m+[Only chunks of submissions with this metadata.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Only chunks of submissions with this metadata.]:KEY=VALUE:_opsq_pair' \
            '--interval=[How often the screen refreshes.]:D: ' && ret=0
          ;;
        metrics)
          _arguments -s -S $flags \
            '--by=[Also count each value of this metadata key.]:KEY:_opsq_keys' \
            '(-o --output)-o+[Write to this file\: beside it first, then renamed; - is stdout.]:FILE:_files' \
            '(-o --output)--output=[Write to this file\: beside it first, then renamed; - is stdout.]:FILE:_files' && ret=0
          ;;
        gateway)
          _arguments -s -S $flags \
            '--listen=[Serve on this address; port 0 takes a free one.]:HOST\:PORT: ' \
            '--uds=[Serve on a Unix socket instead.]:PATH:_files' \
            '--metrics-by=[Metrics also count each value of this metadata key.]:KEY:_opsq_keys' \
            '*--allow-origin=[Pages of this origin, such as https\://example.org, may use the JSON API from a browser; repeatable.]:ORIGIN: ' \
            '--connection-limit=[Hold so many connections at most.]:N: ' \
            '--allow-actions[Let operators pause, resume, requeue and cancel from the page.]' && ret=0
          ;;
        submit)
          _arguments -s -S $flags \
            '(-b --bytes)-b+[Whole records up to this size per chunk.]:SIZE: ' \
            '(-b --bytes)--bytes=[Whole records up to this size per chunk.]:SIZE: ' \
            '(-l --lines)-l+[Records per chunk.]:N: ' \
            '(-l --lines)--lines=[Records per chunk.]:N: ' \
            '(-d --delimiter)-d+[What ends a record, with escapes such as \\t or \\x1e.]:TEXT: ' \
            '(-d --delimiter)--delimiter=[What ends a record, with escapes such as \\t or \\x1e.]:TEXT: ' \
            '(-0 --null)-0[A NUL byte ends a record.]' \
            '(-0 --null)--null[A NUL byte ends a record.]' \
            '--per-file[Each file is one chunk.]' \
            '--as-is[Take compressed files (.gz, .bz2, .xz, .zst) as they are, not as what they hold.]' \
            '--crlf=[Keep carriage returns before line ends, or leave them out.]:keep|strip:(keep strip)' \
            '--csv[Records are CSV records, which may have line ends in quotes.]' \
            '--csv-header[CSV with a header, which is repeated in each chunk.]' \
            '--csv-delimiter=[The character between CSV fields.]:BYTE: ' \
            '--csv-quote=[The quote character of CSV.]:BYTE: ' \
            '--csv-escape=[What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.]:BYTE: ' \
            '*-m+[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '--title=[A line for people, which lists and progress show.]:TEXT: ' \
            '--priority=[Higher comes first under CustomPriority.]:N: ' \
            '--max-attempts=[Failures until a chunk is dead.]:N: ' \
            '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
            '--on-dead=[A dead chunk fails the submission, or the rest continues.]:fail|keep:(fail keep)' \
            '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
            '*--weight=[Set the weight in Fair of the value that this submission has of a key.]:KEY=N: ' \
            '--delay=[Delay the first chunk by this long.]:D: ' \
            '--at=[Start at 2025-01-31T08\:00, local time, or …Z, or @SECONDS.]:INSTANT: ' \
            '*--after=[Wait until this submission is completed (ID\:ended\: has ended), or all with this metadata have ended.]:ID|KEY=VALUE: ' \
            '--on-failed-dependency=[If one of --after ends otherwise\: be cancelled, run nevertheless, or wait until it is requeued.]:cancel|run|keep:(cancel run keep)' \
            '--expires=[Expire if unfinished by then.]:D|INSTANT: ' \
            '--unique=[If an unfinished submission has this key, print its id instead.]:KEY: ' \
            '--unique-until=[How long the key is held\: until the first chunk is handed out, or until the submission ends.]:start|done:(start done)' \
            '--idempotency-key=[If a submission has this key, finished or not, print its id instead.]:KEY: ' \
            '--keep=[With --idempotency-key\: only a submission that has not ended longer ago than this; else any that is known.]:D: ' \
            '--reservation=[How long a consumer may keep a chunk without a heartbeat, at least 0.1s.]:D: ' \
            '--shard-by=[Over several shards\: the metadata key whose value says which one gets it.]:KEY:_opsq_keys' \
            '--ack=[Return once it is committed, or once the daemon'\''s replica has it, too.]:committed|replicated:(committed replicated)' \
            '--attach=[A file to attach, which every consumer can read.]:FILE:_files' \
            '--in-place[Do not copy\: consumers read the files where they are; they must not change.]' \
            '--wait-for-room[If the backlog is full, wait for room, for at most this long; without =D without limit.]' \
            '--dry-run[Show which chunks there would be, or what refuses them; submit nothing.]' \
            '--wait[Wait for the end, as `opsq wait` does.]' \
            '(-o --output)-o+[With --wait\: write the results to this file; - is stdout, and then the id goes to stderr.]:FILE:_files' \
            '(-o --output)--output=[With --wait\: write the results to this file; - is stdout, and then the id goes to stderr.]:FILE:_files' \
            '--header-once[Results are CSV with a header\: write the first, and leave the same header out of the others.]' \
            '--end-lines[Add a line end to each result that lacks one.]' \
            '--from-json=[Take options from a document of `opsq show --json`; without FILE arguments also its chunks.]:FILE|-:_files' \
            '*:FILE:_files' && ret=0
          ;;
        wait)
          _arguments -s -S $flags \
            '*--state=[Only these states\: blocked, scheduled, open.]:STATE:(blocked scheduled open)' \
            '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '--older-than=[Only those submitted at least this long ago.]:D: ' \
            '--newer-than=[Only those submitted within this time.]:D: ' \
            '--all[Every submission that is unfinished now.]' \
            '(-t --timeout)-t+[Give up after this long, with exit 124.]:D: ' \
            '(-t --timeout)--timeout=[Give up after this long, with exit 124.]:D: ' \
            '*:ID:_opsq_open' && ret=0
          ;;
        results)
          _arguments -s -S $flags \
            '(-o --output)-o+[Write to this file\: beside it first, then renamed; - is stdout.]:FILE:_files' \
            '(-o --output)--output=[Write to this file\: beside it first, then renamed; - is stdout.]:FILE:_files' \
            '--header-once[Results are CSV with a header\: write the first, and leave the same header out of the others.]' \
            '--end-lines[Add a line end to each result that lacks one.]' \
            '--csv-delimiter=[The character between CSV fields.]:BYTE: ' \
            '--csv-quote=[The quote character of CSV.]:BYTE: ' \
            '--csv-escape=[What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.]:BYTE: ' \
            '(-f --follow)-f[Do not wait for the end\: write each result as soon as it is next in order.]' \
            '(-f --follow)--follow[Do not wait for the end\: write each result as soon as it is next in order.]' \
            '--skip-dead[Leave out chunks that died or were skipped, instead of stopping there.]' \
            '--skip-bad[Leave out chunks whose results cannot be read, and name them on stderr.]' \
            '1:ID:_opsq_ids' && ret=0
          ;;
        show)
          _arguments -s -S $flags \
            '--running[Instead list its chunks that run now, the longest first.]' \
            '1:ID:_opsq_ids' && ret=0
          ;;
        list)
          _arguments -s -S $flags \
            '*--state=[Only these states\: blocked, scheduled, open, completed, failed, cancelled, expired.]:STATE:(blocked scheduled open completed failed cancelled expired)' \
            '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '--older-than=[Only those submitted at least this long ago.]:D: ' \
            '--newer-than=[Only those submitted within this time.]:D: ' \
            '(-n --limit)-n+[List at most N submissions; by default 100 on a terminal, and all elsewhere.]:N: ' \
            '(-n --limit)--limit=[List at most N submissions; by default 100 on a terminal, and all elsewhere.]:N: ' \
            '--before=[Only submissions older than this (paging).]:ID:_opsq_ids' && ret=0
          ;;
        cancel)
          _arguments -s -S $flags \
            '*--state=[Only these states\: blocked, scheduled, open.]:STATE:(blocked scheduled open)' \
            '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '--older-than=[Only those submitted at least this long ago.]:D: ' \
            '--newer-than=[Only those submitted within this time.]:D: ' \
            '--all[Every unfinished submission.]' \
            '--dry-run[Change nothing; list the submissions that would change.]' \
            '--reason=[The reason, shown by `opsq show`.]:TEXT: ' \
            '*:ID:_opsq_open' && ret=0
          ;;
        rm)
          _arguments -s -S $flags \
            '*--state=[Only these states\: completed, failed, cancelled, expired.]:STATE:(completed failed cancelled expired)' \
            '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
            '--older-than=[Only those submitted at least this long ago.]:D: ' \
            '--newer-than=[Only those submitted within this time.]:D: ' \
            '--all[Every finished submission.]' \
            '--dry-run[Change nothing; list the submissions that would change.]' \
            '*:ID:_opsq_ended' && ret=0
          ;;
        outbox)
          if (( CURRENT == 2 )); then
            verbs=(
              'ddl:Print the statements that make the tables of an outbox; to run them again changes nothing.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            ddl)
              _arguments -s -S $flags \
                '--for=[The database that the statements are for.]:postgresql|sqlite:(postgresql sqlite)' && ret=0
              ;;
          esac
          ;;
        relay)
          _arguments -s -S $flags \
            '--once[End when all rows that are there have been handed over.]' \
            '--batch=[Hand over so many rows at once, at most.]:N: ' \
            '--poll=[Look for rows this often, even if nothing tells of new ones.]:D: ' \
            '--keep=[Keep completions this long after they were handed over, so that no chunk is completed twice.]:D: ' \
            '--retry[First have rows that were set aside tried again.]' \
            '1:URL: ' && ret=0
          ;;
        dead)
          if (( CURRENT == 2 )); then
            verbs=(
              'list:List dead chunks: chunk, attempts, losses, time of death, exit status or signal, reason.'
              'show:Show everything about a dead chunk: each attempt, and the full last reason, usually the end of stderr.'
              'requeue:Give dead chunks new attempts; a submission that had failed, or was cancelled or expired, is open again.'
              'drop:Give up on dead chunks: they count as skipped from then on and can no longer be requeued.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            list)
              _arguments -s -S $flags \
                '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--older-than=[Only those that died at least this long ago.]:D: ' \
                '--newer-than=[Only those that died within this time.]:D: ' \
                '--reason=[Only with this text in the reason, ignoring case.]:TEXT: ' \
                '*--exit-status=[Only after this exit status of the program (repeatable; or one of --signal).]:N: ' \
                '*--signal=[Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).]:NAME: ' \
                '(-n --limit)-n+[List at most N chunks; by default 100 on a terminal, and all elsewhere.]:N: ' \
                '(-n --limit)--limit=[List at most N chunks; by default 100 on a terminal, and all elsewhere.]:N: ' \
                '*:ID:_opsq_ids' && ret=0
              ;;
            show)
              _arguments -s -S $flags \
                '1:SUBMISSION/INDEX: ' && ret=0
              ;;
            requeue)
              _arguments -s -S $flags \
                '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--older-than=[Only those that died at least this long ago.]:D: ' \
                '--newer-than=[Only those that died within this time.]:D: ' \
                '--reason=[Only with this text in the reason, ignoring case.]:TEXT: ' \
                '*--exit-status=[Only after this exit status of the program (repeatable; or one of --signal).]:N: ' \
                '*--signal=[Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).]:NAME: ' \
                '--all[Every dead chunk; if no ID and no condition is given, --all is required.]' \
                '--dry-run[Change nothing; list the chunks that would change.]' \
                '*:ID:_opsq_ids' && ret=0
              ;;
            drop)
              _arguments -s -S $flags \
                '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--older-than=[Only those that died at least this long ago.]:D: ' \
                '--newer-than=[Only those that died within this time.]:D: ' \
                '--reason=[Only with this text in the reason, ignoring case.]:TEXT: ' \
                '*--exit-status=[Only after this exit status of the program (repeatable; or one of --signal).]:N: ' \
                '*--signal=[Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).]:NAME: ' \
                '--all[Every dead chunk; if no ID and no condition is given, --all is required.]' \
                '--dry-run[Change nothing; list the chunks that would change.]' \
                '*:ID: ' && ret=0
              ;;
          esac
          ;;
        run)
          _arguments -s -S $flags \
            '(-b --bytes)-b+[Whole records up to this size per chunk.]:SIZE: ' \
            '(-b --bytes)--bytes=[Whole records up to this size per chunk.]:SIZE: ' \
            '(-l --lines)-l+[Records per chunk.]:N: ' \
            '(-l --lines)--lines=[Records per chunk.]:N: ' \
            '(-d --delimiter)-d+[What ends a record, with escapes such as \\t or \\x1e.]:TEXT: ' \
            '(-d --delimiter)--delimiter=[What ends a record, with escapes such as \\t or \\x1e.]:TEXT: ' \
            '(-0 --null)-0[A NUL byte ends a record.]' \
            '(-0 --null)--null[A NUL byte ends a record.]' \
            '--per-file[Each file is one chunk.]' \
            '--as-is[Take compressed files (.gz, .bz2, .xz, .zst) as they are, not as what they hold.]' \
            '--crlf=[Keep carriage returns before line ends, or leave them out.]:keep|strip:(keep strip)' \
            '--csv[Records are CSV records, which may have line ends in quotes.]' \
            '--csv-header[CSV with a header, which is repeated in each chunk.]' \
            '--csv-delimiter=[The character between CSV fields.]:BYTE: ' \
            '--csv-quote=[The quote character of CSV.]:BYTE: ' \
            '--csv-escape=[What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.]:BYTE: ' \
            '(-j --jobs)-j+[Concurrent programs\: N, or relative to the cores.]:N|N%|+N|-N: ' \
            '(-j --jobs)--jobs=[Concurrent programs\: N, or relative to the cores.]:N|N%|+N|-N: ' \
            '--each[Run once per record of the chunk, which replaces {} or comes last.]' \
            '--args=[Run once per up to N records, which are passed as arguments, as xargs does.]:N: ' \
            '--server=[Start one program per slot and feed it chunk after chunk, as frames or as records.]:frames|records:(frames records)' \
            '--grace=[How long programs may continue after a signal.]:D: ' \
            '--max-runtime=[End a program that runs longer than this; its chunk fails.]:D: ' \
            '--max-result=[End a program that writes a longer result than this; its chunk fails.]:SIZE: ' \
            '--on-lost=[What happens to a program whose reservation was lost\: end it, or let it finish.]:stop|finish:(stop finish)' \
            '--complete-on=[Exit statuses that complete the chunk, such as 0,3.]:LIST: ' \
            '--retry-on=[Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.]:LIST: ' \
            '--bury-on=[Likewise, after which the chunk is dead at once; `other`\: all that are not listed.]:LIST: ' \
            '--log-dir=[Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.]:DIR:_files -/' \
            '--log-failed[Keep only the logs of attempts that did not complete.]' \
            '--progress[Report progress every 30 s where stderr is not a terminal.]' \
            '--clean-env[Give programs only PATH and the variables about the chunk as environment.]' \
            '--tty[Let programs use the terminal, one at a time\: for those that ask for something there.]' \
            '*-m+[Strategic metadata; programs see it as OPSQ_META_KEY.]:KEY=VALUE:_opsq_pair' \
            '*--metadata=[Strategic metadata; programs see it as OPSQ_META_KEY.]:KEY=VALUE:_opsq_pair' \
            '--title=[A line for people, which lists and progress show.]:TEXT: ' \
            '--attach=[A file whose path programs get in OPSQ_ATTACHMENT.]:FILE:_files' \
            '--max-attempts=[Failures until a chunk is dead.]:N: ' \
            '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
            '--on-dead=[A dead chunk ends the round, or the rest is still processed.]:fail|keep:(fail keep)' \
            '--skip-dead[With --on-dead keep\: write the results after a dead chunk too.]' \
            '(-o --output)-o+[Write the results to this file\: beside it first, then renamed; - is stdout.]:FILE:_files' \
            '(-o --output)--output=[Write the results to this file\: beside it first, then renamed; - is stdout.]:FILE:_files' \
            '--header-once[Results are CSV with a header\: write the first, and leave the same header out of the others.]' \
            '--end-lines[Add a line end to each result that lacks one.]' \
            '--resume=[Name the round, so that it can continue later even if its input is a stream.]:KEY: ' \
            '--idempotency-key=[As --resume, and once the round is done, it is not done again.]:KEY: ' \
            '--keep=[With --idempotency-key\: how long after its end a round is not done again; else as long as it is known.]:D: ' \
            '--fresh[Discard what the same command has done before, and start over.]' \
            '(-)1: : _command_names -e' \
            '*::argument: _normal' && ret=0
          ;;
        consume)
          _arguments -s -S $flags \
            '(-j --jobs)-j+[Concurrent programs\: N, or relative to the cores.]:N|N%|+N|-N: ' \
            '(-j --jobs)--jobs=[Concurrent programs\: N, or relative to the cores.]:N|N%|+N|-N: ' \
            '--each[Run once per record of the chunk, which replaces {} or comes last.]' \
            '--args=[Run once per up to N records, which are passed as arguments, as xargs does.]:N: ' \
            '--server=[Start one program per slot and feed it chunk after chunk, as frames or as records.]:frames|records:(frames records)' \
            '--grace=[How long programs may continue after a signal.]:D: ' \
            '--max-runtime=[End a program that runs longer than this; its chunk fails.]:D: ' \
            '--max-result=[End a program that writes a longer result than this; its chunk fails.]:SIZE: ' \
            '--on-lost=[What happens to a program whose reservation was lost\: end it, or let it finish.]:stop|finish:(stop finish)' \
            '--complete-on=[Exit statuses that complete the chunk, such as 0,3.]:LIST: ' \
            '--retry-on=[Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.]:LIST: ' \
            '--bury-on=[Likewise, after which the chunk is dead at once; `other`\: all that are not listed.]:LIST: ' \
            '--log-dir=[Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.]:DIR:_files -/' \
            '--log-failed[Keep only the logs of attempts that did not complete.]' \
            '--progress[Report progress every 30 s where stderr is not a terminal.]' \
            '--clean-env[Give programs only PATH and the variables about the chunk as environment.]' \
            '(-d --delimiter)-d+[What ends a record, with escapes.]:TEXT: ' \
            '(-d --delimiter)--delimiter=[What ends a record, with escapes.]:TEXT: ' \
            '(-0 --null)-0[A NUL byte ends a record.]' \
            '(-0 --null)--null[A NUL byte ends a record.]' \
            '(-s --strategy)-s+[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
            '(-s --strategy)--strategy=[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
            '--submission=[Take chunks of this submission only, in the order of --strategy.]:ID: ' \
            '--shards=[Over several shards\: take chunks of these only, as in 0-3,7.]:N-M: ' \
            '--until-empty[End when nothing is free, reserved by anyone or waiting for a retry.]' \
            '--until-idle[End as soon as nothing can be reserved.]' \
            '--max-chunks=[End after N chunks were completed or failed.]:N: ' \
            '--stop-after=[Start no chunk after this long; end when running programs have ended.]:D: ' \
            '--single=[Exit 0 at once if the daemon already has a consumer with this NAME.]:NAME: ' \
            '--tty[Let programs use the terminal, one at a time\: for those that ask for something there.]' \
            '--name=[The name of this consumer in `opsq status`.]:NAME: ' \
            '--dry-run[Run nothing; print the command lines for the next --max-chunks chunks, by default 10.]' \
            '--exit-status=[Exit with opsq'\''s own status, or with that of the first program that did not exit 0.]:opsq|child:(opsq child)' \
            '(-)1: : _command_names -e' \
            '*::argument: _normal' && ret=0
          ;;
        reserve)
          _arguments -s -S $flags \
            '(-n --count)-n+[Reserve at most N chunks.]:N: ' \
            '(-n --count)--count=[Reserve at most N chunks.]:N: ' \
            '(-s --strategy)-s+[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
            '(-s --strategy)--strategy=[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
            '--lease=[Length of the lease, for example 90, 10m, 2h.]:D: ' \
            '(-w --wait)-w+[Wait up to this long for the first chunk.]:D: ' \
            '(-w --wait)--wait=[Wait up to this long for the first chunk.]:D: ' && ret=0
          ;;
        read)
          _arguments -s -S $flags \
            '(-o --output)-o+[Write to this file instead\: beside it first, then renamed.]:FILE:_files' \
            '(-o --output)--output=[Write to this file instead\: beside it first, then renamed.]:FILE:_files' \
            '1:HANDLE: ' && ret=0
          ;;
        complete)
          _arguments -s -S $flags \
            '(-r --result)-r+[The result of the chunk\: a file, or - for stdin.]:FILE:_files' \
            '(-r --result)--result=[The result of the chunk\: a file, or - for stdin.]:FILE:_files' \
            '--then=[Follow-ups, made in the same commit\: a file, or - for stdin, with a submission a line, as JSON.]:FILE:_files' \
            '*:HANDLE: ' && ret=0
          ;;
        fail)
          _arguments -s -S $flags \
            '--reason=[The reason, as text.]:TEXT: ' \
            '--delay=[Retry after this long instead of the back-off.]:D: ' \
            '--no-retry[Make the chunks dead at once.]' \
            '*:HANDLE: ' && ret=0
          ;;
        release)
          _arguments -s -S $flags \
            '--consumer=[Release everything that this consumer holds; `opsq status` lists consumers.]:ID:_opsq_consumers' \
            '*:HANDLE: ' && ret=0
          ;;
        extend)
          _arguments -s -S $flags \
            '--lease=[The length from now.]:D: ' \
            '*:HANDLE: ' && ret=0
          ;;
        spark)
          if (( CURRENT == 2 )); then
            verbs=(
              'doctor:Check whether Spark can be used from here: versions, Java, ports, one row there and back; exits 5 if not.'
              'submit:Submit the rows of a data set as chunks; prints only the id of the submission.'
              'consume:Run a program for each chunk on Spark'\''s executors: each task of one job is a consumer until no chunk is left.'
              'results:Write the results of a submission as a data set, in the order of its chunks; it must have ended.'
              'run:Read a data set, submit its rows as chunks, run a program for each on the executors, and write the results.'
              'report:Report what the history shows: waiting and run times, throughput, retries, dead chunks, load and fairness.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            doctor)
              _arguments -s -S $flags \
                '--master=[Where the executors are\: local\[N\], spark\://HOST\:PORT, yarn, …, or a Spark Connect sc\://HOST\:PORT.]:URL: ' \
                '*--conf=[A setting of Spark; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--spark-logs[Show the whole log of Spark on stderr.]' && ret=0
              ;;
            submit)
              _arguments -s -S $flags \
                '--format=[The format of the inputs\: parquet, csv, json, …; by default from their names.]:NAME: ' \
                '*--option=[An option of that reader, such as header=true.]:KEY=VALUE:_opsq_pair' \
                '--schema=[The columns of the inputs, such as '\''id BIGINT, text STRING'\''.]:DDL: ' \
                '*--select=[Only this column or SQL expression; repeatable.]:EXPR: ' \
                '--where=[Only rows for which this SQL condition holds.]:CONDITION: ' \
                '(-n --rows-per-chunk)-n+[Rows per chunk; the last chunk of a partition has fewer.]:N: ' \
                '(-n --rows-per-chunk)--rows-per-chunk=[Rows per chunk; the last chunk of a partition has fewer.]:N: ' \
                '(-b --bytes-per-chunk)-b+[Approximate bytes per chunk.]:SIZE: ' \
                '(-b --bytes-per-chunk)--bytes-per-chunk=[Approximate bytes per chunk.]:SIZE: ' \
                '--chunk-format=[What a program reads on its stdin.]:jsonl|csv|text|parquet|arrow:(jsonl csv text parquet arrow)' \
                '*-m+[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--title=[A line for people, which lists and progress show.]:TEXT: ' \
                '--priority=[Higher comes first under CustomPriority.]:N: ' \
                '--max-attempts=[Failures until a chunk is dead.]:N: ' \
                '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
                '--on-dead=[A dead chunk fails the submission, or the rest continues.]:fail|keep:(fail keep)' \
                '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
                '*--weight=[Set the weight in Fair of the value that this submission has of a key.]:KEY=N: ' \
                '--delay=[Delay the first chunk by this long.]:D: ' \
                '--at=[Start at 2025-01-31T08\:00, local time, or …Z, or @SECONDS.]:INSTANT: ' \
                '*--after=[Wait until this submission is completed (ID\:ended\: has ended), or all with this metadata have ended.]:ID|KEY=VALUE: ' \
                '--on-failed-dependency=[If one of --after ends otherwise\: be cancelled, run nevertheless, or wait until it is requeued.]:cancel|run|keep:(cancel run keep)' \
                '--expires=[Expire if unfinished by then.]:D|INSTANT: ' \
                '--idempotency-key=[The same rows under this key are one submission, as long as it exists.]:KEY: ' \
                '--reservation=[How long a consumer may keep a chunk without a heartbeat, at least 0.1s.]:D: ' \
                '--master=[Where the executors are\: local\[N\], spark\://HOST\:PORT, yarn, …, or a Spark Connect sc\://HOST\:PORT.]:URL: ' \
                '*--conf=[A setting of Spark; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--spark-logs[Show the whole log of Spark on stderr.]' \
                '*:INPUT:_files' && ret=0
              ;;
            consume)
              _arguments -s -S $flags \
                '(-j --jobs)-j+[Concurrent programs in each task.]:N|N%|+N|-N: ' \
                '(-j --jobs)--jobs=[Concurrent programs in each task.]:N|N%|+N|-N: ' \
                '--each[Run once per record of the chunk, which replaces {} or comes last.]' \
                '--args=[Run once per up to N records, which are passed as arguments, as xargs does.]:N: ' \
                '--server=[Start one program per slot and feed it chunk after chunk, as frames or as records.]:frames|records:(frames records)' \
                '--grace=[How long programs may continue after a signal.]:D: ' \
                '--max-runtime=[End a program that runs longer than this; its chunk fails.]:D: ' \
                '--max-result=[End a program that writes a longer result than this; its chunk fails.]:SIZE: ' \
                '--on-lost=[What happens to a program whose reservation was lost\: end it, or let it finish.]:stop|finish:(stop finish)' \
                '--complete-on=[Exit statuses that complete the chunk, such as 0,3.]:LIST: ' \
                '--retry-on=[Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.]:LIST: ' \
                '--bury-on=[Likewise, after which the chunk is dead at once; `other`\: all that are not listed.]:LIST: ' \
                '--log-dir=[Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.]:DIR:_files -/' \
                '--log-failed[Keep only the logs of attempts that did not complete.]' \
                '--progress[Report progress every 30 s where stderr is not a terminal.]' \
                '--clean-env[Give programs only PATH and the variables about the chunk as environment.]' \
                '(-d --delimiter)-d+[What ends a record, with escapes.]:TEXT: ' \
                '(-d --delimiter)--delimiter=[What ends a record, with escapes.]:TEXT: ' \
                '(-0 --null)-0[A NUL byte ends a record.]' \
                '(-0 --null)--null[A NUL byte ends a record.]' \
                '--master=[Where the executors are\: local\[N\], spark\://HOST\:PORT, yarn, …, or a Spark Connect sc\://HOST\:PORT.]:URL: ' \
                '*--conf=[A setting of Spark; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--spark-logs[Show the whole log of Spark on stderr.]' \
                '(-s --strategy)-s+[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
                '(-s --strategy)--strategy=[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
                '--submission=[Take chunks of this submission only, in the order of --strategy.]:ID: ' \
                '(-t --tasks)-t+[Consumers on the executors.]:N: ' \
                '(-t --tasks)--tasks=[Consumers on the executors.]:N: ' \
                '--deadline=[Start no chunk after this long; end when running programs have ended.]:D: ' \
                '--until-idle[End as soon as no chunk can be reserved, not only when none can come any more.]' \
                '(-)1: : _command_names -e' \
                '*::argument: _normal' && ret=0
              ;;
            results)
              _arguments -s -S $flags \
                '(-o --output)-o+[The folder to write to, with one file per partition.]:DIR:_files -/' \
                '(-o --output)--output=[The folder to write to, with one file per partition.]:DIR:_files -/' \
                '--output-format=[parquet, csv, json, …; by default from the name of --output, else parquet.]:NAME: ' \
                '*--output-option=[An option of that writer, such as header=true.]:KEY=VALUE:_opsq_pair' \
                '--overwrite[Replace an existing output.]' \
                '--files=[Write at most this many files; they keep the order of the rows.]:N: ' \
                '--result-format=[The format of results; by default detected, else that of the chunks.]:parquet|arrow|jsonl|csv|text|binary:(parquet arrow jsonl csv text binary)' \
                '--result-schema=[The columns of results; same\: those of the chunks; by default from the results and the chunks.]:DDL|same: ' \
                '--skip-dead[Leave out the chunks that have no result.]' \
                '--master=[Where the executors are\: local\[N\], spark\://HOST\:PORT, yarn, …, or a Spark Connect sc\://HOST\:PORT.]:URL: ' \
                '*--conf=[A setting of Spark; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--spark-logs[Show the whole log of Spark on stderr.]' \
                '1:ID: ' && ret=0
              ;;
            run)
              _arguments -s -S $flags \
                '--format=[The format of the inputs\: parquet, csv, json, …; by default from their names.]:NAME: ' \
                '*--option=[An option of that reader, such as header=true.]:KEY=VALUE:_opsq_pair' \
                '--schema=[The columns of the inputs, such as '\''id BIGINT, text STRING'\''.]:DDL: ' \
                '*--select=[Only this column or SQL expression; repeatable.]:EXPR: ' \
                '--where=[Only rows for which this SQL condition holds.]:CONDITION: ' \
                '(-n --rows-per-chunk)-n+[Rows per chunk; the last chunk of a partition has fewer.]:N: ' \
                '(-n --rows-per-chunk)--rows-per-chunk=[Rows per chunk; the last chunk of a partition has fewer.]:N: ' \
                '(-b --bytes-per-chunk)-b+[Approximate bytes per chunk.]:SIZE: ' \
                '(-b --bytes-per-chunk)--bytes-per-chunk=[Approximate bytes per chunk.]:SIZE: ' \
                '--chunk-format=[What a program reads on its stdin.]:jsonl|csv|text|parquet|arrow:(jsonl csv text parquet arrow)' \
                '*-m+[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--title=[A line for people, which lists and progress show.]:TEXT: ' \
                '--priority=[Higher comes first under CustomPriority.]:N: ' \
                '--max-attempts=[Failures until a chunk is dead.]:N: ' \
                '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
                '--on-dead=[A dead chunk fails the submission, or the rest continues.]:fail|keep:(fail keep)' \
                '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
                '*--weight=[Set the weight in Fair of the value that this submission has of a key.]:KEY=N: ' \
                '--delay=[Delay the first chunk by this long.]:D: ' \
                '--at=[Start at 2025-01-31T08\:00, local time, or …Z, or @SECONDS.]:INSTANT: ' \
                '*--after=[Wait until this submission is completed (ID\:ended\: has ended), or all with this metadata have ended.]:ID|KEY=VALUE: ' \
                '--on-failed-dependency=[If one of --after ends otherwise\: be cancelled, run nevertheless, or wait until it is requeued.]:cancel|run|keep:(cancel run keep)' \
                '--expires=[Expire if unfinished by then.]:D|INSTANT: ' \
                '--idempotency-key=[The same rows under this key are one submission, as long as it exists.]:KEY: ' \
                '--reservation=[How long a consumer may keep a chunk without a heartbeat, at least 0.1s.]:D: ' \
                '(-j --jobs)-j+[Concurrent programs in each task.]:N|N%|+N|-N: ' \
                '(-j --jobs)--jobs=[Concurrent programs in each task.]:N|N%|+N|-N: ' \
                '--each[Run once per record of the chunk, which replaces {} or comes last.]' \
                '--args=[Run once per up to N records, which are passed as arguments, as xargs does.]:N: ' \
                '--server=[Start one program per slot and feed it chunk after chunk, as frames or as records.]:frames|records:(frames records)' \
                '--grace=[How long programs may continue after a signal.]:D: ' \
                '--max-runtime=[End a program that runs longer than this; its chunk fails.]:D: ' \
                '--max-result=[End a program that writes a longer result than this; its chunk fails.]:SIZE: ' \
                '--on-lost=[What happens to a program whose reservation was lost\: end it, or let it finish.]:stop|finish:(stop finish)' \
                '--complete-on=[Exit statuses that complete the chunk, such as 0,3.]:LIST: ' \
                '--retry-on=[Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.]:LIST: ' \
                '--bury-on=[Likewise, after which the chunk is dead at once; `other`\: all that are not listed.]:LIST: ' \
                '--log-dir=[Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.]:DIR:_files -/' \
                '--log-failed[Keep only the logs of attempts that did not complete.]' \
                '--progress[Report progress every 30 s where stderr is not a terminal.]' \
                '--clean-env[Give programs only PATH and the variables about the chunk as environment.]' \
                '(-o --output)-o+[The folder to write to, with one file per partition.]:DIR:_files -/' \
                '(-o --output)--output=[The folder to write to, with one file per partition.]:DIR:_files -/' \
                '--output-format=[parquet, csv, json, …; by default from the name of --output, else parquet.]:NAME: ' \
                '*--output-option=[An option of that writer, such as header=true.]:KEY=VALUE:_opsq_pair' \
                '--overwrite[Replace an existing output.]' \
                '--files=[Write at most this many files; they keep the order of the rows.]:N: ' \
                '--result-format=[The format of results; by default detected, else that of the chunks.]:parquet|arrow|jsonl|csv|text|binary:(parquet arrow jsonl csv text binary)' \
                '--result-schema=[The columns of results; same\: those of the chunks; by default from the results and the chunks.]:DDL|same: ' \
                '--skip-dead[Leave out the chunks that have no result.]' \
                '--master=[Where the executors are\: local\[N\], spark\://HOST\:PORT, yarn, …, or a Spark Connect sc\://HOST\:PORT.]:URL: ' \
                '*--conf=[A setting of Spark; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--spark-logs[Show the whole log of Spark on stderr.]' \
                '(-s --strategy)-s+[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
                '(-s --strategy)--strategy=[Which chunks come first; see `opsq explain`.]:STRATEGY:_opsq_strategies' \
                '(-t --tasks)-t+[Consumers on the executors.]:N: ' \
                '(-t --tasks)--tasks=[Consumers on the executors.]:N: ' \
                '--deadline=[Start no chunk after this long; end when running programs have ended.]:D: ' \
                '--keep[Keep the submission and its content in the queue after success.]' \
                '(-)1: : _command_names -e' \
                '*::argument: _normal' && ret=0
              ;;
            report)
              _arguments -s -S $flags \
                '--by=[Group by the values of this metadata key, or by `submission`.]:KEY:_opsq_keys' \
                '--since=[Only since this time; a duration, such as 2h, counts back from now.]:T: ' \
                '--until=[Only before this time; a duration as with --since.]:T: ' \
                '--from=[Read this folder of `opsq history export --format parquet`, not the queue.]:DIR:_files -/' \
                '--step=[The length of a window of time; by default at most 60 cover all.]:D: ' \
                '--html=[Write a page with plots as well, in one file.]:FILE:_files' \
                '(-n --limit)-n+[How many values and consumers to show, largest first.]:N: ' \
                '(-n --limit)--limit=[How many values and consumers to show, largest first.]:N: ' \
                '--tables[Print tables even if stdout is not a terminal, instead of tab-separated lines.]' \
                '--master=[Where the executors are\: local\[N\], spark\://HOST\:PORT, yarn, …, or a Spark Connect sc\://HOST\:PORT.]:URL: ' \
                '*--conf=[A setting of Spark; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--spark-logs[Show the whole log of Spark on stderr.]' && ret=0
              ;;
          esac
          ;;
        history)
          if (( CURRENT == 2 )); then
            verbs=(
              'list:List events, newest first: time, event, chunks, attempt, consumer, waited, ran (seconds), exit status or signal, reason.'
              'export:Write events, oldest first, to a file, to stdout, or to files in a folder, named by the rows they hold.'
              'prune:Delete old history now, in small steps between other work; the daemon itself deletes by age (history_days) and count (history_rows).'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            list)
              _arguments -s -S $flags \
                '*--event=[Only these, repeatable\: completed, failed, lost, dead, requeued, dropped, cancelled, expired.]:EVENT:(completed failed lost dead requeued dropped cancelled expired)' \
                '--consumer=[Only of consumers whose name starts with this.]:NAME: ' \
                '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--reason=[Only with this text in the reason, ignoring case.]:TEXT: ' \
                '*--exit-status=[Only after this exit status of the program (repeatable; or one of --signal).]:N: ' \
                '*--signal=[Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).]:NAME: ' \
                '--since=[Only since this time; a duration, such as 2h, counts back from now.]:T: ' \
                '--until=[Only before this time; a duration as with --since.]:T: ' \
                '(-n --limit)-n+[List at most N rows; by default 100 on a terminal, and all elsewhere.]:N: ' \
                '(-n --limit)--limit=[List at most N rows; by default 100 on a terminal, and all elsewhere.]:N: ' \
                '--oldest-first[Start with the oldest instead of the newest.]' \
                '--after=[Continue after this row, in the order shown (paging).]:SEQ: ' \
                '1:ID: ' && ret=0
              ;;
            export)
              _arguments -s -S $flags \
                '*--event=[Only these, repeatable\: completed, failed, lost, dead, requeued, dropped, cancelled, expired.]:EVENT:(completed failed lost dead requeued dropped cancelled expired)' \
                '--consumer=[Only of consumers whose name starts with this.]:NAME: ' \
                '*-m+[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Only of submissions with this metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--reason=[Only with this text in the reason, ignoring case.]:TEXT: ' \
                '*--exit-status=[Only after this exit status of the program (repeatable; or one of --signal).]:N: ' \
                '*--signal=[Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).]:NAME: ' \
                '--since=[Only since this time; a duration, such as 2h, counts back from now.]:T: ' \
                '--until=[Only before this time; a duration as with --since.]:T: ' \
                '(-o --output)-o+[A file, an existing folder, or - for stdout.]:FILE|FOLDER|-: ' \
                '(-o --output)--output=[A file, an existing folder, or - for stdout.]:FILE|FOLDER|-: ' \
                '--format=[JSON lines, CSV or Parquet; by default from the file name, else JSON lines.]:jsonl|csv|parquet:(jsonl csv parquet)' \
                '--rotate=[Start a new file in the folder after this number of rows.]:N: ' \
                '--after=[Only rows after this one.]:SEQ: ' \
                '--after-last[Only rows after the last one in the folder'\''s files.]' \
                '1:ID: ' && ret=0
              ;;
            prune)
              _arguments -s -S $flags \
                '--older-than=[Delete rows older than this.]:D: ' \
                '--keep=[Keep only the newest N rows.]:N: ' && ret=0
              ;;
          esac
          ;;
        events)
          _arguments -s -S $flags \
            '(-f --follow)-f[Go on with new events as they come, also when the daemon is restarted.]' \
            '(-f --follow)--follow[Go on with new events as they come, also when the daemon is restarted.]' \
            '--since=[Only events behind this one.]:CURSOR|now|oldest: ' \
            '--cursor-file=[Go on behind the cursor in this file, and keep it up to date with what was printed.]:FILE:_files' \
            '*--kind=[Only these kinds\: completed, failed, cancelled, expired, dead, paused, resumed, fired, missed.]:KIND:(completed failed cancelled expired dead paused resumed fired missed)' \
            '(-n --limit)-n+[End after this number of events.]:N: ' \
            '(-n --limit)--limit=[End after this number of events.]:N: ' && ret=0
          ;;
        notify)
          if (( CURRENT == 2 )); then
            verbs=(
              'run:Run the program that [on] in opsq.toml has for the kind of each event, and call the webhooks that want it.'
              'dead:List deliveries that were given up, oldest first: id, target, time, attempts, error, event.'
              'retry:Have deliveries that were given up tried again, by the opsq notify that runs or the next one.'
              'drop:Forget deliveries that were given up.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            run)
              _arguments -s -S $flags \
                '--once[End when all that has happened by now was tried; the rest waits for the next run.]' \
                '--since=[Where to begin when it runs for the first time.]:CURSOR|now|oldest: ' \
                '(-j --jobs)-j+[Deliver up to this number at once to each target.]:N: ' \
                '(-j --jobs)--jobs=[Deliver up to this number at once to each target.]:N: ' \
                '--time-limit=[Kill a program that takes longer.]:D: ' \
                '--attempts=[Give up after this number of attempts.]:N: ' \
                '--backoff=[Delay after the first failed attempt; then five times as long each time.]:D: ' && ret=0
              ;;
            dead)
              _arguments -s -S $flags && ret=0
              ;;
            retry)
              _arguments -s -S $flags \
                '--all[All of them.]' \
                '*:ID: ' && ret=0
              ;;
            drop)
              _arguments -s -S $flags \
                '--all[All of them.]' \
                '*:ID: ' && ret=0
              ;;
          esac
          ;;
        explain)
          _arguments -s -S $flags \
            '(-a --analyze)-a[Try the strategy out on the queue as it is; nothing is reserved.]' \
            '(-a --analyze)--analyze[Try the strategy out on the queue as it is; nothing is reserved.]' \
            '1:STRATEGY|ID:_opsq_explained' && ret=0
          ;;
        pause)
          _arguments -s -S $flags \
            '--all[Every submission.]' \
            '--operator[As an operator\: only `resume --operator` ends such a pause.]' \
            '*:KEY=VALUE:_opsq_pair' && ret=0
          ;;
        resume)
          _arguments -s -S $flags \
            '--all[Every submission.]' \
            '--operator[As an operator\: only `resume --operator` ends such a pause.]' \
            '*:KEY=VALUE:_opsq_pair' && ret=0
          ;;
        limit)
          _arguments -s -S $flags \
            '(-c --concurrency)-c+[Maximum number of concurrent chunks.]:N: ' \
            '(-c --concurrency)--concurrency=[Maximum number of concurrent chunks.]:N: ' \
            '(-r --rate)-r+[Chunks started per time\: 10/s, 100/m, 5/15m.]:N/D: ' \
            '(-r --rate)--rate=[Chunks started per time\: 10/s, 100/m, 5/15m.]:N/D: ' \
            '--burst=[With --rate\: chunks that may start at once after idling.]:N: ' \
            '--split[Over several shards\: divide N and the rate among them.]' \
            '--lift[Remove the limit.]' \
            '1:KEY[=VALUE]:_opsq_keys' && ret=0
          ;;
        limits)
          _arguments -s -S $flags && ret=0
          ;;
        weight)
          _arguments -s -S $flags \
            '1:KEY=VALUE:_opsq_pair' \
            '2:N: ' && ret=0
          ;;
        audit)
          _arguments -s -S $flags \
            '(-n --limit)-n+[List at most N acts; by default 100 on a terminal, and all elsewhere.]:N: ' \
            '(-n --limit)--limit=[List at most N acts; by default 100 on a terminal, and all elsewhere.]:N: ' && ret=0
          ;;
        schedule)
          if (( CURRENT == 2 )); then
            verbs=(
              'list:List schedules: name, time, next instants, state of the last submission; instants made, skipped and missed.'
              'add:Add a schedule: the daemon makes one submission of one chunk for each planned instant, despite restarts.'
              'edit:Change a schedule: options that are not given keep their values, and submissions already made are not affected.'
              'show:Show a schedule: its next instants, what it has made, and its options.'
              'pause:Pause schedules: planned instants pass without a submission until they are resumed; running work continues.'
              'resume:Resume paused schedules from now on; `opsq schedule backfill` makes up for what they missed.'
              'trigger:Make a submission of a schedule now, even if it is paused or another is unfinished; prints its id.'
              'backfill:Make submissions for planned instants of the past that have none; prints their ids.'
              'rm:Remove schedules; their submissions stay.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            list)
              _arguments -s -S $flags && ret=0
              ;;
            add)
              _arguments -s -S $flags \
                '--tz=[The time zone of WHEN, such as Europe/Amsterdam.]:ZONE: ' \
                '--jitter=[Delay each submission by up to this long.]:D: ' \
                '--overlap=[If the previous submission is unfinished\: skip this one (default), queue it, allow both, or cancel that.]:skip|queue|allow|cancel:(skip queue allow cancel)' \
                '--catch-up=[What to catch up on after downtime\: none, last (default) or all; with =D nothing older than that.]:HOW[=D]: ' \
                '--from=[Plan nothing before this instant.]:INSTANT: ' \
                '--until=[Plan nothing from this instant on.]:INSTANT: ' \
                '--pause-on-failure[Pause the schedule if a submission fails; =no undoes this.]' \
                '*-m+[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--title=[A line for people, which lists and progress show.]:TEXT: ' \
                '--priority=[Higher comes first under CustomPriority.]:N: ' \
                '--max-attempts=[Failures until a chunk is dead.]:N: ' \
                '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
                '--on-dead=[A dead chunk fails the submission, or the rest continues.]:fail|keep:(fail keep)' \
                '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
                '*--weight=[Set the weight in Fair of the value that this submission has of a key.]:KEY=N: ' \
                '--delay=[Delay the first chunk by this long.]:D: ' \
                '--expires=[Expire if unfinished by then.]:D|INSTANT: ' \
                '--reservation=[How long a consumer may keep a chunk without a heartbeat, at least 0.1s.]:D: ' \
                '1:NAME: ' \
                '2:WHEN: ' \
                '3:FILE:_files' && ret=0
              ;;
            edit)
              _arguments -s -S $flags \
                '--when=[A new time, as for `opsq schedule add`.]:WHEN: ' \
                '--content=[New content for the chunk.]:FILE|-:_files' \
                '--tz=[The time zone of WHEN, such as Europe/Amsterdam.]:ZONE: ' \
                '--jitter=[Delay each submission by up to this long.]:D: ' \
                '--overlap=[If the previous submission is unfinished\: skip this one (default), queue it, allow both, or cancel that.]:skip|queue|allow|cancel:(skip queue allow cancel)' \
                '--catch-up=[What to catch up on after downtime\: none, last (default) or all; with =D nothing older than that.]:HOW[=D]: ' \
                '--from=[Plan nothing before this instant.]:INSTANT: ' \
                '--until=[Plan nothing from this instant on.]:INSTANT: ' \
                '--pause-on-failure[Pause the schedule if a submission fails; =no undoes this.]' \
                '*-m+[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '*--metadata=[Strategic metadata; repeatable.]:KEY=VALUE:_opsq_pair' \
                '--title=[A line for people, which lists and progress show.]:TEXT: ' \
                '--priority=[Higher comes first under CustomPriority.]:N: ' \
                '--max-attempts=[Failures until a chunk is dead.]:N: ' \
                '--max-lost=[Lost consumers until a chunk is dead.]:N: ' \
                '--on-dead=[A dead chunk fails the submission, or the rest continues.]:fail|keep:(fail keep)' \
                '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
                '*--weight=[Set the weight in Fair of the value that this submission has of a key.]:KEY=N: ' \
                '--delay=[Delay the first chunk by this long.]:D: ' \
                '--expires=[Expire if unfinished by then.]:D|INSTANT: ' \
                '--reservation=[How long a consumer may keep a chunk without a heartbeat, at least 0.1s.]:D: ' \
                '1:NAME: ' && ret=0
              ;;
            show)
              _arguments -s -S $flags \
                '--next=[How many of the next planned instants to show.]:N: ' \
                '1:NAME: ' && ret=0
              ;;
            pause)
              _arguments -s -S $flags \
                '--note=[Why; shown by `opsq schedule show`.]:TEXT: ' \
                '*:NAME: ' && ret=0
              ;;
            resume)
              _arguments -s -S $flags \
                '*:NAME: ' && ret=0
              ;;
            trigger)
              _arguments -s -S $flags \
                '1:NAME: ' && ret=0
              ;;
            backfill)
              _arguments -s -S $flags \
                '1:NAME: ' \
                '2:FROM: ' \
                '3:TO: ' && ret=0
              ;;
            rm)
              _arguments -s -S $flags \
                '*:NAME: ' && ret=0
              ;;
          esac
          ;;
        queue)
          if (( CURRENT == 2 )); then
            verbs=(
              'list:List the queues that were created, and what holds for each; `opsq status --by queue` counts their records.'
              'create:Create a queue of records, or replace what holds for one; running gateways notice.'
              'show:Show what holds for a queue, whether it was created or not.'
              'rm:Remove queues from the list; records that they have stay, and the defaults hold for new ones.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            list)
              _arguments -s -S $flags && ret=0
              ;;
            create)
              _arguments -s -S $flags \
                '(-s --strategy)-s+[Which records come first.]:STRATEGY:_opsq_strategies' \
                '(-s --strategy)--strategy=[Which records come first.]:STRATEGY:_opsq_strategies' \
                '--lease=[How long a consumer may take before its record is offered again.]:D: ' \
                '--max-attempts=[Attempts until a record is dead.]:N: ' \
                '--backoff=[Delays between attempts, such as 1s,2,5m.]:BASE,FACTOR,MAX: ' \
                '--expires=[Give a record up that is unfinished this long after it came.]:D: ' \
                '--limit=[Refuse records while N are unfinished.]:N: ' \
                '1:NAME: ' && ret=0
              ;;
            show)
              _arguments -s -S $flags \
                '1:NAME: ' && ret=0
              ;;
            rm)
              _arguments -s -S $flags \
                '*:NAME: ' && ret=0
              ;;
          esac
          ;;
        token)
          if (( CURRENT == 2 )); then
            verbs=(
              'list:List tokens: name, roles, time of creation. The tokens themselves are not stored.'
              'create:Create a token and print it, only this once; a running daemon accepts it immediately.'
              'revoke:Revoke tokens: a running daemon ends their connections within a second.'
            )
            _describe -t verbs verb verbs && ret=0
            return ret
          fi
          shift words
          (( CURRENT-- ))
          case $words[1] in
            list)
              _arguments -s -S $flags && ret=0
              ;;
            create)
              _arguments -s -S $flags \
                '--role=[What the token permits\: operator, producer, consumer, read-only.]:ROLE[,ROLE…]: ' \
                '1:NAME: ' && ret=0
              ;;
            revoke)
              _arguments -s -S $flags \
                '*:NAME: ' && ret=0
              ;;
          esac
          ;;
        config)
          _arguments -s -S $flags && ret=0
          ;;
        doctor)
          _arguments -s -S $flags \
            '--cron[Look instead at what a job of cron would lack, compared with this shell.]' \
            '*:PROGRAM: ' && ret=0
          ;;
        check)
          _arguments -s -S $flags && ret=0
          ;;
        backup)
          _arguments -s -S $flags \
            '1:FILE:_files' && ret=0
          ;;
        restore)
          _arguments -s -S $flags \
            '--force[Take over at once, even from a daemon that still serves\: see opsq-restore(1).]' \
            '1:URL: ' && ret=0
          ;;
        vacuum)
          _arguments -s -S $flags && ret=0
          ;;
        demo)
          _arguments -s -S $flags \
            '--consumers=[How many consumers work at the same time, up to 64.]:N: ' \
            '--keep[Keep the folder for inspection.]' \
            '--spark[Show the same with PySpark\: DataFrames, and executors as consumers.]' && ret=0
          ;;
        examples)
          _arguments -s -S $flags \
            '(-o --output)-o+[Copy to this folder, in place of printing.]:DIR:_files -/' \
            '(-o --output)--output=[Copy to this folder, in place of printing.]:DIR:_files -/' \
            '1:NAME:_opsq_examples' && ret=0
          ;;
        completion)
          _arguments -s -S $flags \
            '1:SHELL:(bash zsh fish)' && ret=0
          ;;
      esac
      ;;
  esac
  return ret
}

if [[ $funcstack[1] == _opsq ]]; then
  _opsq "$@"
else
  compdef _opsq opsq
fi
