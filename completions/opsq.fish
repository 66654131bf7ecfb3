# Completion of opsq for fish. Written by tools/papers.py; do not edit it here.
# It runs nothing when it is loaded; `opsq completion` gives submission ids, metadata keys, consumers and strategies.

function __opsq_verb --description 'Print the verb of the command line so far'
    set -l words (commandline -opc)
    set -e words[1]
    set -l verb
    while set -q words[1]
        switch $words[1]
            case --state-dir --socket --token-file --tls-ca-file --tls-client-cert-file --tls-client-key-file
                set -q words[2]; and set -e words[1]
            case '-*'
                set -q verb[1]; and break
            case '*'
                set -a verb $words[1]
                contains -- $verb[1] dead history schedule notify queue outbox token spark; and not set -q verb[2]; or break
        end
        set -e words[1]
    end
    string join ' ' -- $verb
end

function __opsq_at --description 'Whether this is the verb' --argument-names wanted
    set -l verb (__opsq_verb)
    test "$verb" = "$wanted"
end

function __opsq_ask --description 'Print what the daemon knows of a kind' --argument-names kind
    set -l words (commandline -opc)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -e words[1]
    type -q -- $program; and $program completion $kind -- $words 2>/dev/null
end

function __opsq_pairs --description 'Print metadata keys, ready for a value'
    string replace -r '(\t.*)?$' '=' -- (__opsq_ask keys)
end

function __opsq_command --description 'Complete the program that opsq runs, and its arguments'
    set -l words (commandline -opc)
    if set -l at (contains -i -- -- $words)
        set -e words[1..$at]
        complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
    end
end

complete -c opsq -f

complete -c opsq -l json -d 'Print JSON on stdout, also on failure.'
complete -c opsq -s q -l quiet -d 'Print no progress and no remarks.'
complete -c opsq -l utc -d 'Show times in UTC, not in local time.'
complete -c opsq -l state-dir -x -a '(__fish_complete_directories)' -d 'The folder of the daemon: database, socket, log, content.'
complete -c opsq -l socket -r -F -d 'The daemon\'s Unix socket.'
complete -c opsq -l address -d 'Where the daemon listens, or several shards with commas between them, or @FILE with one on each line; the token comes from --token-file or OPSQ_TOKEN.'
complete -c opsq -l token-file -r -F -d 'A file that holds the token for --address.'
complete -c opsq -l tls-ca-file -r -F -d 'The CA that signed the certificate of a daemon at a tls:// address.'
complete -c opsq -l tls-client-cert-file -r -F -d 'This client\'s certificate, if the daemon requires one.'
complete -c opsq -l tls-client-key-file -r -F -d 'Its private key, if not in the same file.'
complete -c opsq -l version -d 'Print the version and exit.'
complete -c opsq -l help -d 'Print help and exit; also after a verb.'
complete -c opsq -n '__opsq_at ""' -a start -d 'Start the daemon and return when it is ready; if one is already running, do nothing and exit 0.'
complete -c opsq -n '__opsq_at ""' -a stop -d 'Stop the daemon: hand out nothing more, wait for reserved chunks, and end it; exits 0 even if none runs.'
complete -c opsq -n '__opsq_at ""' -a restart -d 'Stop the daemon, if one runs, and start it again: consumers reconnect and keep what they hold.'
complete -c opsq -n '__opsq_at ""' -a drain -d 'Take no new submissions, and work off what is there.'
complete -c opsq -n '__opsq_at ""' -a status -d 'Show what the daemon is doing: chunks by state, consumers, sizes; exits 4 when none answers.'
complete -c opsq -n '__opsq_at ""' -a top -d 'Follow the queue on one screen: backlog, rate, what is blocked, what runs where, consumers, latest failures.'
complete -c opsq -n '__opsq_at ""' -a metrics -d 'Print metrics of the daemon once, as Prometheus reads them; exits 4 when none answers.'
complete -c opsq -n '__opsq_at ""' -a gateway -d 'Serve HTTP in front of the daemon.'
complete -c opsq -n '__opsq_at ""' -a submit -d 'Submit files or stdin as chunks; prints only the id of the submission.'
complete -c opsq -n '__opsq_at ""' -a wait -d 'Wait until submissions have ended; exits 1 if one failed, was cancelled or expired, 3 for an unknown id, 124 on timeout. Conditions select among those that are unfinished now.'
complete -c opsq -n '__opsq_at ""' -a results -d 'Write the results of a submission to stdout, in chunk order.'
complete -c opsq -n '__opsq_at ""' -a show -d 'Show one submission: its state, counts, metadata, rules and recent failures; or the history of a chunk.'
complete -c opsq -n '__opsq_at ""' -a list -d 'List submissions, newest first: id, state, chunks, completed, dead, submitted, metadata, title.'
complete -c opsq -n '__opsq_at ""' -a cancel -d 'Cancel submissions: nothing more of them is handed out, and running chunks lose their reservations.'
complete -c opsq -n '__opsq_at ""' -a rm -d 'Remove finished submissions, with their results and content.'
complete -c opsq -n '__opsq_at ""' -a outbox -d 'Print the tables of an outbox, through which work commits with your own transactions.'
complete -c opsq -n '__opsq_at ""' -a relay -d 'Hand the rows of an outbox over to the daemon.'
complete -c opsq -n '__opsq_at ""' -a dead -d 'List dead chunks, show everything about one, give them new attempts, or give up on them.'
complete -c opsq -n '__opsq_at ""' -a run -d 'Run a program on each chunk of the inputs, and write the results to stdout in input order: the whole round in one line.'
complete -c opsq -n '__opsq_at ""' -a consume -d 'Run a program for each chunk: the chunk is its stdin, its stdout is the result, exit 0 completes.'
complete -c opsq -n '__opsq_at ""' -a reserve -d 'Reserve chunks as leases; prints one handle per line, exits 3 when nothing is free.'
complete -c opsq -n '__opsq_at ""' -a read -d 'Write the bytes of a reserved chunk to stdout.'
complete -c opsq -n '__opsq_at ""' -a complete -d 'Complete reserved chunks; durable when it returns.'
complete -c opsq -n '__opsq_at ""' -a fail -d 'Report failed attempts: the chunks are retried after a back-off, or die when their attempts are used up.'
complete -c opsq -n '__opsq_at ""' -a release -d 'Release reserved chunks without counting an attempt.'
complete -c opsq -n '__opsq_at ""' -a extend -d 'Move the deadline of reserved chunks to a full lease from now.'
complete -c opsq -n '__opsq_at ""' -a spark -d 'Move data with PySpark, and process chunks on its executors.'
complete -c opsq -n '__opsq_at ""' -a history -d 'List the history of chunks, export it to files for other programs, or delete it.'
complete -c opsq -n '__opsq_at ""' -a events -d 'Print what has happened, oldest first: cursor, time, kind, subject, sentence; with --json, a document a line.'
complete -c opsq -n '__opsq_at ""' -a notify -d 'Run programs and call webhooks for events; list, retry or drop deliveries that were given up.'
complete -c opsq -n '__opsq_at ""' -a explain -d 'Show how a strategy is served: its arms, their SQL and plans; or why a submission or chunk is not running.'
complete -c opsq -n '__opsq_at ""' -a pause -d 'Stop handing out some submissions until they are resumed; reserved chunks continue.'
complete -c opsq -n '__opsq_at ""' -a resume -d 'End a pause, named by the same pairs; exits 3 if there is none, 7 when an operator set it and --operator is missing.'
complete -c opsq -n '__opsq_at ""' -a limit -d 'Limit concurrent chunks per value, or how many start per unit of time; for every strategy and consumer.'
complete -c opsq -n '__opsq_at ""' -a limits -d 'List pauses, limits and weights: rule, target, value, current use, by whom, since when.'
complete -c opsq -n '__opsq_at ""' -a weight -d 'Set the weight in Fair of a value of a key: 3 is served three times as often as 1, from its next turn on.'
complete -c opsq -n '__opsq_at ""' -a audit -d 'List administrative acts, newest first: time, who, origin, connection, request, fields.'
complete -c opsq -n '__opsq_at ""' -a schedule -d 'List, add, edit, show, pause, resume, trigger, backfill or remove schedules.'
complete -c opsq -n '__opsq_at ""' -a queue -d 'List, create, show or remove the queues of records that a gateway serves.'
complete -c opsq -n '__opsq_at ""' -a token -d 'List, create or revoke the tokens of TCP clients.'
complete -c opsq -n '__opsq_at ""' -a config -d 'Print every setting: its name, its value, and where the value came from.'
complete -c opsq -n '__opsq_at ""' -a doctor -d 'Look for problems on this machine, and say what to do about each; exits 5 if something is wrong.'
complete -c opsq -n '__opsq_at ""' -a check -d 'Check the database and its invariants, also while no daemon runs; exits 6 if something is damaged.'
complete -c opsq -n '__opsq_at ""' -a backup -d 'Copy the database to a file, also while work continues; the content of chunks and large results is not in it.'
complete -c opsq -n '__opsq_at ""' -a restore -d 'Bring a replicated queue back on this machine, when its own is lost; starts no daemon.'
complete -c opsq -n '__opsq_at ""' -a vacuum -d 'Return unused pages of the database to the file system; work continues while it runs.'
complete -c opsq -n '__opsq_at ""' -a demo -d 'Run a demonstration: submit Python\'s own source files, have consumers convert them to upper case, collect and check the results.'
complete -c opsq -n '__opsq_at ""' -a examples -d 'List the examples, print one, or copy some to a folder.'
complete -c opsq -n '__opsq_at ""' -a completion -d 'Print the completion script for a shell; an installation as root already has it in place.'
complete -c opsq -n '__opsq_at dead' -a list -d 'List dead chunks: chunk, attempts, losses, time of death, exit status or signal, reason.'
complete -c opsq -n '__opsq_at dead' -a show -d 'Show everything about a dead chunk: each attempt, and the full last reason, usually the end of stderr.'
complete -c opsq -n '__opsq_at dead' -a requeue -d 'Give dead chunks new attempts; a submission that had failed, or was cancelled or expired, is open again.'
complete -c opsq -n '__opsq_at dead' -a drop -d 'Give up on dead chunks: they count as skipped from then on and can no longer be requeued.'
complete -c opsq -n '__opsq_at history' -a list -d 'List events, newest first: time, event, chunks, attempt, consumer, waited, ran (seconds), exit status or signal, reason.'
complete -c opsq -n '__opsq_at history' -a export -d 'Write events, oldest first, to a file, to stdout, or to files in a folder, named by the rows they hold.'
complete -c opsq -n '__opsq_at history' -a prune -d 'Delete old history now, in small steps between other work; the daemon itself deletes by age (history_days) and count (history_rows).'
complete -c opsq -n '__opsq_at schedule' -a list -d 'List schedules: name, time, next instants, state of the last submission; instants made, skipped and missed.'
complete -c opsq -n '__opsq_at schedule' -a add -d 'Add a schedule: the daemon makes one submission of one chunk for each planned instant, despite restarts.'
complete -c opsq -n '__opsq_at schedule' -a edit -d 'Change a schedule: options that are not given keep their values, and submissions already made are not affected.'
complete -c opsq -n '__opsq_at schedule' -a show -d 'Show a schedule: its next instants, what it has made, and its options.'
complete -c opsq -n '__opsq_at schedule' -a pause -d 'Pause schedules: planned instants pass without a submission until they are resumed; running work continues.'
complete -c opsq -n '__opsq_at schedule' -a resume -d 'Resume paused schedules from now on; `opsq schedule backfill` makes up for what they missed.'
complete -c opsq -n '__opsq_at schedule' -a trigger -d 'Make a submission of a schedule now, even if it is paused or another is unfinished; prints its id.'
complete -c opsq -n '__opsq_at schedule' -a backfill -d 'Make submissions for planned instants of the past that have none; prints their ids.'
complete -c opsq -n '__opsq_at schedule' -a rm -d 'Remove schedules; their submissions stay.'
complete -c opsq -n '__opsq_at notify' -a run -d 'Run the program that [on] in opsq.toml has for the kind of each event, and call the webhooks that want it.'
complete -c opsq -n '__opsq_at notify' -a dead -d 'List deliveries that were given up, oldest first: id, target, time, attempts, error, event.'
complete -c opsq -n '__opsq_at notify' -a retry -d 'Have deliveries that were given up tried again, by the opsq notify that runs or the next one.'
complete -c opsq -n '__opsq_at notify' -a drop -d 'Forget deliveries that were given up.'
complete -c opsq -n '__opsq_at queue' -a list -d 'List the queues that were created, and what holds for each; `opsq status --by queue` counts their records.'
complete -c opsq -n '__opsq_at queue' -a create -d 'Create a queue of records, or replace what holds for one; running gateways notice.'
complete -c opsq -n '__opsq_at queue' -a show -d 'Show what holds for a queue, whether it was created or not.'
complete -c opsq -n '__opsq_at queue' -a rm -d 'Remove queues from the list; records that they have stay, and the defaults hold for new ones.'
complete -c opsq -n '__opsq_at outbox' -a ddl -d 'Print the statements that make the tables of an outbox; to run them again changes nothing.'
complete -c opsq -n '__opsq_at token' -a list -d 'List tokens: name, roles, time of creation. The tokens themselves are not stored.'
complete -c opsq -n '__opsq_at token' -a create -d 'Create a token and print it, only this once; a running daemon accepts it immediately.'
complete -c opsq -n '__opsq_at token' -a revoke -d 'Revoke tokens: a running daemon ends their connections within a second.'
complete -c opsq -n '__opsq_at spark' -a doctor -d 'Check whether Spark can be used from here: versions, Java, ports, one row there and back; exits 5 if not.'
complete -c opsq -n '__opsq_at spark' -a submit -d 'Submit the rows of a data set as chunks; prints only the id of the submission.'
complete -c opsq -n '__opsq_at spark' -a consume -d 'Run a program for each chunk on Spark\'s executors: each task of one job is a consumer until no chunk is left.'
complete -c opsq -n '__opsq_at spark' -a results -d 'Write the results of a submission as a data set, in the order of its chunks; it must have ended.'
complete -c opsq -n '__opsq_at spark' -a run -d 'Read a data set, submit its rows as chunks, run a program for each on the executors, and write the results.'
complete -c opsq -n '__opsq_at spark' -a report -d 'Report what the history shows: waiting and run times, throughput, retries, dead chunks, load and fairness.'

# opsq start
complete -c opsq -n '__opsq_at start' -l foreground -d 'Run in the foreground, for a service manager; also log to stderr.'
complete -c opsq -n '__opsq_at start' -l socket-mode -x -d 'File mode of the socket.'
complete -c opsq -n '__opsq_at start' -l shard -x -d 'Number of this daemon among the shards of a queue, 0 to 1023, which its file keeps; default that of the file.'
complete -c opsq -n '__opsq_at start' -l listen -x -d 'HOST:PORT where the daemon listens on TCP, besides its socket; empty: no TCP.'
complete -c opsq -n '__opsq_at start' -l listen-force -d 'Allow `listen` without TLS on an address others can reach.'
complete -c opsq -n '__opsq_at start' -l tls-cert-file -r -F -d 'The daemon\'s certificate: `listen` then speaks TLS only.'
complete -c opsq -n '__opsq_at start' -l tls-key-file -r -F -d 'Its private key, if not in the same file.'
complete -c opsq -n '__opsq_at start' -l tls-client-ca-file -r -F -d 'Require a certificate signed by this CA from TCP clients.'
complete -c opsq -n '__opsq_at start' -l client-token-file -r -F -d 'A token for all producers and consumers over TCP; optional.'
complete -c opsq -n '__opsq_at start' -l tokens-file -r -F -d 'Named tokens with their roles, stored as hashes; see opsq token.'
complete -c opsq -n '__opsq_at start' -l store -x -a '(__fish_complete_directories)' -d 'Where content is stored: file://, s3://, gs:// or az:// URL; default content/ in the state folder.'
complete -c opsq -n '__opsq_at start' -l replicate-to -x -d 'Where the queue is copied to while it is written: as `store`.'
complete -c opsq -n '__opsq_at start' -l replicate-every-s -x -d 'How often what is new is copied.'
complete -c opsq -n '__opsq_at start' -l replicate-lease-s -x -d 'How long no other daemon may take the replica over.'
complete -c opsq -n '__opsq_at start' -l ack -x -a 'committed replicated' -d 'When a submit is acknowledged: after its commit, or once its copy is known to be in the replica.'
complete -c opsq -n '__opsq_at start' -l durability -x -a 'durable normal' -d 'Durable: synced before each reply; normal: a power failure may lose the latest work.'
complete -c opsq -n '__opsq_at start' -l allow-network-fs -d 'Allow the state folder on a network file system, with slower locking.'
complete -c opsq -n '__opsq_at start' -l frame-limit-bytes -x -d 'Maximum size of a protocol frame.'
complete -c opsq -n '__opsq_at start' -l chunk-limit-bytes -x -d 'Maximum size of a chunk.'
complete -c opsq -n '__opsq_at start' -l connection-limit -x -d 'Maximum number of connections.'
complete -c opsq -n '__opsq_at start' -l log-level -x -a 'debug info warning error' -d 'Log level: debug, info, warning, error.'
complete -c opsq -n '__opsq_at start' -l log-bytes -x -d 'Size at which the log is rotated.'
complete -c opsq -n '__opsq_at start' -l log-count -x -d 'How many rotated logs are kept.'
complete -c opsq -n '__opsq_at start' -l trace-sql -d 'Log each SQL statement with its cost.'
complete -c opsq -n '__opsq_at start' -l drain-s -x -d 'How long a stopping daemon waits for reserved chunks.'
complete -c opsq -n '__opsq_at start' -l reservation-s -x -d 'Length of a reservation.'
complete -c opsq -n '__opsq_at start' -l heartbeat-s -x -d 'How often a connection sends a heartbeat.'
complete -c opsq -n '__opsq_at start' -l heartbeat-misses -x -d 'How many missed heartbeats end a connection.'
complete -c opsq -n '__opsq_at start' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at start' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at start' -l backoff-base-s -x -d 'Delay after the first failure of a chunk.'
complete -c opsq -n '__opsq_at start' -l backoff-factor -x -d 'Factor by which the delay grows with each failure.'
complete -c opsq -n '__opsq_at start' -l backoff-max-s -x -d 'Maximum delay after a failure.'
complete -c opsq -n '__opsq_at start' -l max-backlog-chunks -x -d 'Maximum number of unfinished chunks; submissions beyond it are refused; 0: no limit.'
complete -c opsq -n '__opsq_at start' -l min-free-bytes -x -d 'Disk space that must stay free; with less, submissions are refused.'
complete -c opsq -n '__opsq_at start' -l history-days -x -d 'How many days history is kept.'
complete -c opsq -n '__opsq_at start' -l history-rows -x -d 'Rows of history that are kept.'
complete -c opsq -n '__opsq_at start' -l finished-days -x -d 'How many days finished submissions and their content are kept.'
complete -c opsq -n '__opsq_at start' -l event-days -x -d 'How many days events are kept.'
complete -c opsq -n '__opsq_at start' -l event-rows -x -d 'Events that are kept.'
complete -c opsq -n '__opsq_at start' -l restart-lease-s -x -d 'How long a restarted daemon waits for consumers to come back.'

# opsq stop
complete -c opsq -n '__opsq_at stop' -l drain -x -d 'How long to wait for what is reserved.'

# opsq restart
complete -c opsq -n '__opsq_at restart' -l drain -x -d 'How long to wait for what is reserved.'
complete -c opsq -n '__opsq_at restart' -l socket-mode -x -d 'File mode of the socket.'
complete -c opsq -n '__opsq_at restart' -l shard -x -d 'Number of this daemon among the shards of a queue, 0 to 1023, which its file keeps; default that of the file.'
complete -c opsq -n '__opsq_at restart' -l listen -x -d 'HOST:PORT where the daemon listens on TCP, besides its socket; empty: no TCP.'
complete -c opsq -n '__opsq_at restart' -l listen-force -d 'Allow `listen` without TLS on an address others can reach.'
complete -c opsq -n '__opsq_at restart' -l tls-cert-file -r -F -d 'The daemon\'s certificate: `listen` then speaks TLS only.'
complete -c opsq -n '__opsq_at restart' -l tls-key-file -r -F -d 'Its private key, if not in the same file.'
complete -c opsq -n '__opsq_at restart' -l tls-client-ca-file -r -F -d 'Require a certificate signed by this CA from TCP clients.'
complete -c opsq -n '__opsq_at restart' -l client-token-file -r -F -d 'A token for all producers and consumers over TCP; optional.'
complete -c opsq -n '__opsq_at restart' -l tokens-file -r -F -d 'Named tokens with their roles, stored as hashes; see opsq token.'
complete -c opsq -n '__opsq_at restart' -l store -x -a '(__fish_complete_directories)' -d 'Where content is stored: file://, s3://, gs:// or az:// URL; default content/ in the state folder.'
complete -c opsq -n '__opsq_at restart' -l replicate-to -x -d 'Where the queue is copied to while it is written: as `store`.'
complete -c opsq -n '__opsq_at restart' -l replicate-every-s -x -d 'How often what is new is copied.'
complete -c opsq -n '__opsq_at restart' -l replicate-lease-s -x -d 'How long no other daemon may take the replica over.'
complete -c opsq -n '__opsq_at restart' -l ack -x -a 'committed replicated' -d 'When a submit is acknowledged: after its commit, or once its copy is known to be in the replica.'
complete -c opsq -n '__opsq_at restart' -l durability -x -a 'durable normal' -d 'Durable: synced before each reply; normal: a power failure may lose the latest work.'
complete -c opsq -n '__opsq_at restart' -l allow-network-fs -d 'Allow the state folder on a network file system, with slower locking.'
complete -c opsq -n '__opsq_at restart' -l frame-limit-bytes -x -d 'Maximum size of a protocol frame.'
complete -c opsq -n '__opsq_at restart' -l chunk-limit-bytes -x -d 'Maximum size of a chunk.'
complete -c opsq -n '__opsq_at restart' -l connection-limit -x -d 'Maximum number of connections.'
complete -c opsq -n '__opsq_at restart' -l log-level -x -a 'debug info warning error' -d 'Log level: debug, info, warning, error.'
complete -c opsq -n '__opsq_at restart' -l log-bytes -x -d 'Size at which the log is rotated.'
complete -c opsq -n '__opsq_at restart' -l log-count -x -d 'How many rotated logs are kept.'
complete -c opsq -n '__opsq_at restart' -l trace-sql -d 'Log each SQL statement with its cost.'
complete -c opsq -n '__opsq_at restart' -l drain-s -x -d 'How long a stopping daemon waits for reserved chunks.'
complete -c opsq -n '__opsq_at restart' -l reservation-s -x -d 'Length of a reservation.'
complete -c opsq -n '__opsq_at restart' -l heartbeat-s -x -d 'How often a connection sends a heartbeat.'
complete -c opsq -n '__opsq_at restart' -l heartbeat-misses -x -d 'How many missed heartbeats end a connection.'
complete -c opsq -n '__opsq_at restart' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at restart' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at restart' -l backoff-base-s -x -d 'Delay after the first failure of a chunk.'
complete -c opsq -n '__opsq_at restart' -l backoff-factor -x -d 'Factor by which the delay grows with each failure.'
complete -c opsq -n '__opsq_at restart' -l backoff-max-s -x -d 'Maximum delay after a failure.'
complete -c opsq -n '__opsq_at restart' -l max-backlog-chunks -x -d 'Maximum number of unfinished chunks; submissions beyond it are refused; 0: no limit.'
complete -c opsq -n '__opsq_at restart' -l min-free-bytes -x -d 'Disk space that must stay free; with less, submissions are refused.'
complete -c opsq -n '__opsq_at restart' -l history-days -x -d 'How many days history is kept.'
complete -c opsq -n '__opsq_at restart' -l history-rows -x -d 'Rows of history that are kept.'
complete -c opsq -n '__opsq_at restart' -l finished-days -x -d 'How many days finished submissions and their content are kept.'
complete -c opsq -n '__opsq_at restart' -l event-days -x -d 'How many days events are kept.'
complete -c opsq -n '__opsq_at restart' -l event-rows -x -d 'Events that are kept.'
complete -c opsq -n '__opsq_at restart' -l restart-lease-s -x -d 'How long a restarted daemon waits for consumers to come back.'

# opsq drain
complete -c opsq -n '__opsq_at drain' -l undo -d 'Take new submissions again.'
complete -c opsq -n '__opsq_at drain' -l to -x -d 'Move what is unfinished to the daemon at this address.'
complete -c opsq -n '__opsq_at drain' -l all -d 'With --to, move also what has ended.'
complete -c opsq -n '__opsq_at drain' -l to-token-file -r -F -d 'The token for that daemon, if it is another one.'
complete -c opsq -n '__opsq_at drain' -l patience -x -d 'With --to, revoke reservations that last longer than this.'
complete -c opsq -n '__opsq_at drain' -s w -l wait -d 'Return when nothing is unfinished.'
complete -c opsq -n '__opsq_at drain' -s t -l timeout -x -d 'Give up waiting after this long, with exit 124.'
complete -c opsq -n '__opsq_at drain' -l give-up -x -d 'Drop what is moving here from a daemon that is gone for good.'
complete -c opsq -n '__opsq_at drain' -l force -d 'With --give-up, drop also complete copies: there may be no others.'

# opsq status
complete -c opsq -n '__opsq_at status' -s w -l watch -d 'Refresh until Ctrl-C.'
complete -c opsq -n '__opsq_at status' -l by -x -a '(__opsq_ask keys)' -d 'Also count per value of this metadata key.'
complete -c opsq -n '__opsq_at status' -l interval -x -d 'How often --watch refreshes.'

# opsq top
complete -c opsq -n '__opsq_at top' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only chunks of submissions with this metadata.'
complete -c opsq -n '__opsq_at top' -l interval -x -d 'How often the screen refreshes.'

# opsq metrics
complete -c opsq -n '__opsq_at metrics' -l by -x -a '(__opsq_ask keys)' -d 'Also count each value of this metadata key.'
complete -c opsq -n '__opsq_at metrics' -s o -l output -r -F -d 'Write to this file: beside it first, then renamed; - is stdout.'

# opsq gateway
complete -c opsq -n '__opsq_at gateway' -l listen -x -d 'Serve on this address; port 0 takes a free one.'
complete -c opsq -n '__opsq_at gateway' -l uds -r -F -d 'Serve on a Unix socket instead.'
complete -c opsq -n '__opsq_at gateway' -l metrics-by -x -a '(__opsq_ask keys)' -d 'Metrics also count each value of this metadata key.'
complete -c opsq -n '__opsq_at gateway' -l allow-origin -x -d 'Pages of this origin, such as https://example.org, may use the JSON API from a browser; repeatable.'
complete -c opsq -n '__opsq_at gateway' -l connection-limit -x -d 'Hold so many connections at most.'
complete -c opsq -n '__opsq_at gateway' -l allow-actions -d 'Let operators pause, resume, requeue and cancel from the page.'

# opsq submit
complete -c opsq -n '__opsq_at submit' -F
complete -c opsq -n '__opsq_at submit' -s b -l bytes -x -d 'Whole records up to this size per chunk.'
complete -c opsq -n '__opsq_at submit' -s l -l lines -x -d 'Records per chunk.'
complete -c opsq -n '__opsq_at submit' -s d -l delimiter -x -d 'What ends a record, with escapes such as \\t or \\x1e.'
complete -c opsq -n '__opsq_at submit' -s 0 -l null -d 'A NUL byte ends a record.'
complete -c opsq -n '__opsq_at submit' -l per-file -d 'Each file is one chunk.'
complete -c opsq -n '__opsq_at submit' -l as-is -d 'Take compressed files (.gz, .bz2, .xz, .zst) as they are, not as what they hold.'
complete -c opsq -n '__opsq_at submit' -l crlf -x -a 'keep strip' -d 'Keep carriage returns before line ends, or leave them out.'
complete -c opsq -n '__opsq_at submit' -l csv -d 'Records are CSV records, which may have line ends in quotes.'
complete -c opsq -n '__opsq_at submit' -l csv-header -d 'CSV with a header, which is repeated in each chunk.'
complete -c opsq -n '__opsq_at submit' -l csv-delimiter -x -d 'The character between CSV fields.'
complete -c opsq -n '__opsq_at submit' -l csv-quote -x -d 'The quote character of CSV.'
complete -c opsq -n '__opsq_at submit' -l csv-escape -x -d 'What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.'
complete -c opsq -n '__opsq_at submit' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Strategic metadata; repeatable.'
complete -c opsq -n '__opsq_at submit' -l title -x -d 'A line for people, which lists and progress show.'
complete -c opsq -n '__opsq_at submit' -l priority -x -d 'Higher comes first under CustomPriority.'
complete -c opsq -n '__opsq_at submit' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at submit' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at submit' -l on-dead -x -a 'fail keep' -d 'A dead chunk fails the submission, or the rest continues.'
complete -c opsq -n '__opsq_at submit' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at submit' -l weight -x -d 'Set the weight in Fair of the value that this submission has of a key.'
complete -c opsq -n '__opsq_at submit' -l delay -x -d 'Delay the first chunk by this long.'
complete -c opsq -n '__opsq_at submit' -l at -x -d 'Start at 2025-01-31T08:00, local time, or …Z, or @SECONDS.'
complete -c opsq -n '__opsq_at submit' -l after -x -d 'Wait until this submission is completed (ID:ended: has ended), or all with this metadata have ended.'
complete -c opsq -n '__opsq_at submit' -l on-failed-dependency -x -a 'cancel run keep' -d 'If one of --after ends otherwise: be cancelled, run nevertheless, or wait until it is requeued.'
complete -c opsq -n '__opsq_at submit' -l expires -x -d 'Expire if unfinished by then.'
complete -c opsq -n '__opsq_at submit' -l unique -x -d 'If an unfinished submission has this key, print its id instead.'
complete -c opsq -n '__opsq_at submit' -l unique-until -x -a 'start done' -d 'How long the key is held: until the first chunk is handed out, or until the submission ends.'
complete -c opsq -n '__opsq_at submit' -l idempotency-key -x -d 'If a submission has this key, finished or not, print its id instead.'
complete -c opsq -n '__opsq_at submit' -l keep -x -d 'With --idempotency-key: only a submission that has not ended longer ago than this; else any that is known.'
complete -c opsq -n '__opsq_at submit' -l reservation -x -d 'How long a consumer may keep a chunk without a heartbeat, at least 0.1s.'
complete -c opsq -n '__opsq_at submit' -l shard-by -x -a '(__opsq_ask keys)' -d 'Over several shards: the metadata key whose value says which one gets it.'
complete -c opsq -n '__opsq_at submit' -l ack -x -a 'committed replicated' -d 'Return once it is committed, or once the daemon\'s replica has it, too.'
complete -c opsq -n '__opsq_at submit' -l attach -r -F -d 'A file to attach, which every consumer can read.'
complete -c opsq -n '__opsq_at submit' -l in-place -d 'Do not copy: consumers read the files where they are; they must not change.'
complete -c opsq -n '__opsq_at submit' -l wait-for-room -d 'If the backlog is full, wait for room, for at most this long; without =D without limit.'
complete -c opsq -n '__opsq_at submit' -l dry-run -d 'Show which chunks there would be, or what refuses them; submit nothing.'
complete -c opsq -n '__opsq_at submit' -l wait -d 'Wait for the end, as `opsq wait` does.'
complete -c opsq -n '__opsq_at submit' -s o -l output -r -F -d 'With --wait: write the results to this file; - is stdout, and then the id goes to stderr.'
complete -c opsq -n '__opsq_at submit' -l header-once -d 'Results are CSV with a header: write the first, and leave the same header out of the others.'
complete -c opsq -n '__opsq_at submit' -l end-lines -d 'Add a line end to each result that lacks one.'
complete -c opsq -n '__opsq_at submit' -l from-json -r -F -d 'Take options from a document of `opsq show --json`; without FILE arguments also its chunks.'

# opsq wait
complete -c opsq -n '__opsq_at wait' -k -a '(__opsq_ask open)'
complete -c opsq -n '__opsq_at wait' -l state -x -a 'blocked scheduled open' -d 'Only these states: blocked, scheduled, open.'
complete -c opsq -n '__opsq_at wait' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at wait' -l older-than -x -d 'Only those submitted at least this long ago.'
complete -c opsq -n '__opsq_at wait' -l newer-than -x -d 'Only those submitted within this time.'
complete -c opsq -n '__opsq_at wait' -l all -d 'Every submission that is unfinished now.'
complete -c opsq -n '__opsq_at wait' -s t -l timeout -x -d 'Give up after this long, with exit 124.'

# opsq results
complete -c opsq -n '__opsq_at results' -k -a '(__opsq_ask ids)'
complete -c opsq -n '__opsq_at results' -s o -l output -r -F -d 'Write to this file: beside it first, then renamed; - is stdout.'
complete -c opsq -n '__opsq_at results' -l header-once -d 'Results are CSV with a header: write the first, and leave the same header out of the others.'
complete -c opsq -n '__opsq_at results' -l end-lines -d 'Add a line end to each result that lacks one.'
complete -c opsq -n '__opsq_at results' -l csv-delimiter -x -d 'The character between CSV fields.'
complete -c opsq -n '__opsq_at results' -l csv-quote -x -d 'The quote character of CSV.'
complete -c opsq -n '__opsq_at results' -l csv-escape -x -d 'What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.'
complete -c opsq -n '__opsq_at results' -s f -l follow -d 'Do not wait for the end: write each result as soon as it is next in order.'
complete -c opsq -n '__opsq_at results' -l skip-dead -d 'Leave out chunks that died or were skipped, instead of stopping there.'
complete -c opsq -n '__opsq_at results' -l skip-bad -d 'Leave out chunks whose results cannot be read, and name them on stderr.'

# opsq show
complete -c opsq -n '__opsq_at show' -k -a '(__opsq_ask ids)'
complete -c opsq -n '__opsq_at show' -l running -d 'Instead list its chunks that run now, the longest first.'

# opsq list
complete -c opsq -n '__opsq_at list' -l state -x -a 'blocked scheduled open completed failed cancelled expired' -d 'Only these states: blocked, scheduled, open, completed, failed, cancelled, expired.'
complete -c opsq -n '__opsq_at list' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at list' -l older-than -x -d 'Only those submitted at least this long ago.'
complete -c opsq -n '__opsq_at list' -l newer-than -x -d 'Only those submitted within this time.'
complete -c opsq -n '__opsq_at list' -s n -l limit -x -d 'List at most N submissions; by default 100 on a terminal, and all elsewhere.'
complete -c opsq -n '__opsq_at list' -l before -x -a '(__opsq_ask ids)' -d 'Only submissions older than this (paging).'

# opsq cancel
complete -c opsq -n '__opsq_at cancel' -k -a '(__opsq_ask open)'
complete -c opsq -n '__opsq_at cancel' -l state -x -a 'blocked scheduled open' -d 'Only these states: blocked, scheduled, open.'
complete -c opsq -n '__opsq_at cancel' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at cancel' -l older-than -x -d 'Only those submitted at least this long ago.'
complete -c opsq -n '__opsq_at cancel' -l newer-than -x -d 'Only those submitted within this time.'
complete -c opsq -n '__opsq_at cancel' -l all -d 'Every unfinished submission.'
complete -c opsq -n '__opsq_at cancel' -l dry-run -d 'Change nothing; list the submissions that would change.'
complete -c opsq -n '__opsq_at cancel' -l reason -x -d 'The reason, shown by `opsq show`.'

# opsq rm
complete -c opsq -n '__opsq_at rm' -k -a '(__opsq_ask ended)'
complete -c opsq -n '__opsq_at rm' -l state -x -a 'completed failed cancelled expired' -d 'Only these states: completed, failed, cancelled, expired.'
complete -c opsq -n '__opsq_at rm' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at rm' -l older-than -x -d 'Only those submitted at least this long ago.'
complete -c opsq -n '__opsq_at rm' -l newer-than -x -d 'Only those submitted within this time.'
complete -c opsq -n '__opsq_at rm' -l all -d 'Every finished submission.'
complete -c opsq -n '__opsq_at rm' -l dry-run -d 'Change nothing; list the submissions that would change.'

# opsq outbox ddl
complete -c opsq -n '__opsq_at "outbox ddl"' -l for -x -a 'postgresql sqlite' -d 'The database that the statements are for.'

# opsq relay
complete -c opsq -n '__opsq_at relay' -l once -d 'End when all rows that are there have been handed over.'
complete -c opsq -n '__opsq_at relay' -l batch -x -d 'Hand over so many rows at once, at most.'
complete -c opsq -n '__opsq_at relay' -l poll -x -d 'Look for rows this often, even if nothing tells of new ones.'
complete -c opsq -n '__opsq_at relay' -l keep -x -d 'Keep completions this long after they were handed over, so that no chunk is completed twice.'
complete -c opsq -n '__opsq_at relay' -l retry -d 'First have rows that were set aside tried again.'

# opsq dead list
complete -c opsq -n '__opsq_at "dead list"' -k -a '(__opsq_ask ids)'
complete -c opsq -n '__opsq_at "dead list"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at "dead list"' -l older-than -x -d 'Only those that died at least this long ago.'
complete -c opsq -n '__opsq_at "dead list"' -l newer-than -x -d 'Only those that died within this time.'
complete -c opsq -n '__opsq_at "dead list"' -l reason -x -d 'Only with this text in the reason, ignoring case.'
complete -c opsq -n '__opsq_at "dead list"' -l exit-status -x -d 'Only after this exit status of the program (repeatable; or one of --signal).'
complete -c opsq -n '__opsq_at "dead list"' -l signal -x -d 'Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).'
complete -c opsq -n '__opsq_at "dead list"' -s n -l limit -x -d 'List at most N chunks; by default 100 on a terminal, and all elsewhere.'

# opsq dead show

# opsq dead requeue
complete -c opsq -n '__opsq_at "dead requeue"' -k -a '(__opsq_ask ids)'
complete -c opsq -n '__opsq_at "dead requeue"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at "dead requeue"' -l older-than -x -d 'Only those that died at least this long ago.'
complete -c opsq -n '__opsq_at "dead requeue"' -l newer-than -x -d 'Only those that died within this time.'
complete -c opsq -n '__opsq_at "dead requeue"' -l reason -x -d 'Only with this text in the reason, ignoring case.'
complete -c opsq -n '__opsq_at "dead requeue"' -l exit-status -x -d 'Only after this exit status of the program (repeatable; or one of --signal).'
complete -c opsq -n '__opsq_at "dead requeue"' -l signal -x -d 'Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).'
complete -c opsq -n '__opsq_at "dead requeue"' -l all -d 'Every dead chunk; if no ID and no condition is given, --all is required.'
complete -c opsq -n '__opsq_at "dead requeue"' -l dry-run -d 'Change nothing; list the chunks that would change.'

# opsq dead drop
complete -c opsq -n '__opsq_at "dead drop"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at "dead drop"' -l older-than -x -d 'Only those that died at least this long ago.'
complete -c opsq -n '__opsq_at "dead drop"' -l newer-than -x -d 'Only those that died within this time.'
complete -c opsq -n '__opsq_at "dead drop"' -l reason -x -d 'Only with this text in the reason, ignoring case.'
complete -c opsq -n '__opsq_at "dead drop"' -l exit-status -x -d 'Only after this exit status of the program (repeatable; or one of --signal).'
complete -c opsq -n '__opsq_at "dead drop"' -l signal -x -d 'Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).'
complete -c opsq -n '__opsq_at "dead drop"' -l all -d 'Every dead chunk; if no ID and no condition is given, --all is required.'
complete -c opsq -n '__opsq_at "dead drop"' -l dry-run -d 'Change nothing; list the chunks that would change.'

# opsq run
complete -c opsq -n '__opsq_at run' -F
complete -c opsq -n '__opsq_at run' -a '(__opsq_command)'
complete -c opsq -n '__opsq_at run' -s b -l bytes -x -d 'Whole records up to this size per chunk.'
complete -c opsq -n '__opsq_at run' -s l -l lines -x -d 'Records per chunk.'
complete -c opsq -n '__opsq_at run' -s d -l delimiter -x -d 'What ends a record, with escapes such as \\t or \\x1e.'
complete -c opsq -n '__opsq_at run' -s 0 -l null -d 'A NUL byte ends a record.'
complete -c opsq -n '__opsq_at run' -l per-file -d 'Each file is one chunk.'
complete -c opsq -n '__opsq_at run' -l as-is -d 'Take compressed files (.gz, .bz2, .xz, .zst) as they are, not as what they hold.'
complete -c opsq -n '__opsq_at run' -l crlf -x -a 'keep strip' -d 'Keep carriage returns before line ends, or leave them out.'
complete -c opsq -n '__opsq_at run' -l csv -d 'Records are CSV records, which may have line ends in quotes.'
complete -c opsq -n '__opsq_at run' -l csv-header -d 'CSV with a header, which is repeated in each chunk.'
complete -c opsq -n '__opsq_at run' -l csv-delimiter -x -d 'The character between CSV fields.'
complete -c opsq -n '__opsq_at run' -l csv-quote -x -d 'The quote character of CSV.'
complete -c opsq -n '__opsq_at run' -l csv-escape -x -d 'What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.'
complete -c opsq -n '__opsq_at run' -s j -l jobs -x -d 'Concurrent programs: N, or relative to the cores.'
complete -c opsq -n '__opsq_at run' -l each -d 'Run once per record of the chunk, which replaces {} or comes last.'
complete -c opsq -n '__opsq_at run' -l args -x -d 'Run once per up to N records, which are passed as arguments, as xargs does.'
complete -c opsq -n '__opsq_at run' -l server -x -a 'frames records' -d 'Start one program per slot and feed it chunk after chunk, as frames or as records.'
complete -c opsq -n '__opsq_at run' -l grace -x -d 'How long programs may continue after a signal.'
complete -c opsq -n '__opsq_at run' -l max-runtime -x -d 'End a program that runs longer than this; its chunk fails.'
complete -c opsq -n '__opsq_at run' -l max-result -x -d 'End a program that writes a longer result than this; its chunk fails.'
complete -c opsq -n '__opsq_at run' -l on-lost -x -a 'stop finish' -d 'What happens to a program whose reservation was lost: end it, or let it finish.'
complete -c opsq -n '__opsq_at run' -l complete-on -x -d 'Exit statuses that complete the chunk, such as 0,3.'
complete -c opsq -n '__opsq_at run' -l retry-on -x -d 'Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.'
complete -c opsq -n '__opsq_at run' -l bury-on -x -d 'Likewise, after which the chunk is dead at once; `other`: all that are not listed.'
complete -c opsq -n '__opsq_at run' -l log-dir -x -a '(__fish_complete_directories)' -d 'Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.'
complete -c opsq -n '__opsq_at run' -l log-failed -d 'Keep only the logs of attempts that did not complete.'
complete -c opsq -n '__opsq_at run' -l progress -d 'Report progress every 30 s where stderr is not a terminal.'
complete -c opsq -n '__opsq_at run' -l clean-env -d 'Give programs only PATH and the variables about the chunk as environment.'
complete -c opsq -n '__opsq_at run' -l tty -d 'Let programs use the terminal, one at a time: for those that ask for something there.'
complete -c opsq -n '__opsq_at run' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Strategic metadata; programs see it as OPSQ_META_KEY.'
complete -c opsq -n '__opsq_at run' -l title -x -d 'A line for people, which lists and progress show.'
complete -c opsq -n '__opsq_at run' -l attach -r -F -d 'A file whose path programs get in OPSQ_ATTACHMENT.'
complete -c opsq -n '__opsq_at run' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at run' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at run' -l on-dead -x -a 'fail keep' -d 'A dead chunk ends the round, or the rest is still processed.'
complete -c opsq -n '__opsq_at run' -l skip-dead -d 'With --on-dead keep: write the results after a dead chunk too.'
complete -c opsq -n '__opsq_at run' -s o -l output -r -F -d 'Write the results to this file: beside it first, then renamed; - is stdout.'
complete -c opsq -n '__opsq_at run' -l header-once -d 'Results are CSV with a header: write the first, and leave the same header out of the others.'
complete -c opsq -n '__opsq_at run' -l end-lines -d 'Add a line end to each result that lacks one.'
complete -c opsq -n '__opsq_at run' -l resume -x -d 'Name the round, so that it can continue later even if its input is a stream.'
complete -c opsq -n '__opsq_at run' -l idempotency-key -x -d 'As --resume, and once the round is done, it is not done again.'
complete -c opsq -n '__opsq_at run' -l keep -x -d 'With --idempotency-key: how long after its end a round is not done again; else as long as it is known.'
complete -c opsq -n '__opsq_at run' -l fresh -d 'Discard what the same command has done before, and start over.'

# opsq consume
complete -c opsq -n '__opsq_at consume' -a '(__opsq_command)'
complete -c opsq -n '__opsq_at consume' -s j -l jobs -x -d 'Concurrent programs: N, or relative to the cores.'
complete -c opsq -n '__opsq_at consume' -l each -d 'Run once per record of the chunk, which replaces {} or comes last.'
complete -c opsq -n '__opsq_at consume' -l args -x -d 'Run once per up to N records, which are passed as arguments, as xargs does.'
complete -c opsq -n '__opsq_at consume' -l server -x -a 'frames records' -d 'Start one program per slot and feed it chunk after chunk, as frames or as records.'
complete -c opsq -n '__opsq_at consume' -l grace -x -d 'How long programs may continue after a signal.'
complete -c opsq -n '__opsq_at consume' -l max-runtime -x -d 'End a program that runs longer than this; its chunk fails.'
complete -c opsq -n '__opsq_at consume' -l max-result -x -d 'End a program that writes a longer result than this; its chunk fails.'
complete -c opsq -n '__opsq_at consume' -l on-lost -x -a 'stop finish' -d 'What happens to a program whose reservation was lost: end it, or let it finish.'
complete -c opsq -n '__opsq_at consume' -l complete-on -x -d 'Exit statuses that complete the chunk, such as 0,3.'
complete -c opsq -n '__opsq_at consume' -l retry-on -x -d 'Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.'
complete -c opsq -n '__opsq_at consume' -l bury-on -x -d 'Likewise, after which the chunk is dead at once; `other`: all that are not listed.'
complete -c opsq -n '__opsq_at consume' -l log-dir -x -a '(__fish_complete_directories)' -d 'Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.'
complete -c opsq -n '__opsq_at consume' -l log-failed -d 'Keep only the logs of attempts that did not complete.'
complete -c opsq -n '__opsq_at consume' -l progress -d 'Report progress every 30 s where stderr is not a terminal.'
complete -c opsq -n '__opsq_at consume' -l clean-env -d 'Give programs only PATH and the variables about the chunk as environment.'
complete -c opsq -n '__opsq_at consume' -s d -l delimiter -x -d 'What ends a record, with escapes.'
complete -c opsq -n '__opsq_at consume' -s 0 -l null -d 'A NUL byte ends a record.'
complete -c opsq -n '__opsq_at consume' -s s -l strategy -x -a '(__opsq_ask strategies)' -d 'Which chunks come first; see `opsq explain`.'
complete -c opsq -n '__opsq_at consume' -l submission -x -d 'Take chunks of this submission only, in the order of --strategy.'
complete -c opsq -n '__opsq_at consume' -l shards -x -d 'Over several shards: take chunks of these only, as in 0-3,7.'
complete -c opsq -n '__opsq_at consume' -l until-empty -d 'End when nothing is free, reserved by anyone or waiting for a retry.'
complete -c opsq -n '__opsq_at consume' -l until-idle -d 'End as soon as nothing can be reserved.'
complete -c opsq -n '__opsq_at consume' -l max-chunks -x -d 'End after N chunks were completed or failed.'
complete -c opsq -n '__opsq_at consume' -l stop-after -x -d 'Start no chunk after this long; end when running programs have ended.'
complete -c opsq -n '__opsq_at consume' -l single -x -d 'Exit 0 at once if the daemon already has a consumer with this NAME.'
complete -c opsq -n '__opsq_at consume' -l tty -d 'Let programs use the terminal, one at a time: for those that ask for something there.'
complete -c opsq -n '__opsq_at consume' -l name -x -d 'The name of this consumer in `opsq status`.'
complete -c opsq -n '__opsq_at consume' -l dry-run -d 'Run nothing; print the command lines for the next --max-chunks chunks, by default 10.'
complete -c opsq -n '__opsq_at consume' -l exit-status -x -a 'opsq child' -d 'Exit with opsq\'s own status, or with that of the first program that did not exit 0.'

# opsq reserve
complete -c opsq -n '__opsq_at reserve' -s n -l count -x -d 'Reserve at most N chunks.'
complete -c opsq -n '__opsq_at reserve' -s s -l strategy -x -a '(__opsq_ask strategies)' -d 'Which chunks come first; see `opsq explain`.'
complete -c opsq -n '__opsq_at reserve' -l lease -x -d 'Length of the lease, for example 90, 10m, 2h.'
complete -c opsq -n '__opsq_at reserve' -s w -l wait -x -d 'Wait up to this long for the first chunk.'

# opsq read
complete -c opsq -n '__opsq_at read' -s o -l output -r -F -d 'Write to this file instead: beside it first, then renamed.'

# opsq complete
complete -c opsq -n '__opsq_at complete' -s r -l result -r -F -d 'The result of the chunk: a file, or - for stdin.'
complete -c opsq -n '__opsq_at complete' -l then -r -F -d 'Follow-ups, made in the same commit: a file, or - for stdin, with a submission a line, as JSON.'

# opsq fail
complete -c opsq -n '__opsq_at fail' -l reason -x -d 'The reason, as text.'
complete -c opsq -n '__opsq_at fail' -l delay -x -d 'Retry after this long instead of the back-off.'
complete -c opsq -n '__opsq_at fail' -l no-retry -d 'Make the chunks dead at once.'

# opsq release
complete -c opsq -n '__opsq_at release' -l consumer -x -a '(__opsq_ask consumers)' -d 'Release everything that this consumer holds; `opsq status` lists consumers.'

# opsq extend
complete -c opsq -n '__opsq_at extend' -l lease -x -d 'The length from now.'

# opsq spark doctor
complete -c opsq -n '__opsq_at "spark doctor"' -l master -x -d 'Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.'
complete -c opsq -n '__opsq_at "spark doctor"' -l conf -x -a '(__opsq_pairs)' -d 'A setting of Spark; repeatable.'
complete -c opsq -n '__opsq_at "spark doctor"' -l spark-logs -d 'Show the whole log of Spark on stderr.'

# opsq spark submit
complete -c opsq -n '__opsq_at "spark submit"' -F
complete -c opsq -n '__opsq_at "spark submit"' -l format -x -d 'The format of the inputs: parquet, csv, json, …; by default from their names.'
complete -c opsq -n '__opsq_at "spark submit"' -l option -x -a '(__opsq_pairs)' -d 'An option of that reader, such as header=true.'
complete -c opsq -n '__opsq_at "spark submit"' -l schema -x -d 'The columns of the inputs, such as \'id BIGINT, text STRING\'.'
complete -c opsq -n '__opsq_at "spark submit"' -l select -x -d 'Only this column or SQL expression; repeatable.'
complete -c opsq -n '__opsq_at "spark submit"' -l where -x -d 'Only rows for which this SQL condition holds.'
complete -c opsq -n '__opsq_at "spark submit"' -s n -l rows-per-chunk -x -d 'Rows per chunk; the last chunk of a partition has fewer.'
complete -c opsq -n '__opsq_at "spark submit"' -s b -l bytes-per-chunk -x -d 'Approximate bytes per chunk.'
complete -c opsq -n '__opsq_at "spark submit"' -l chunk-format -x -a 'jsonl csv text parquet arrow' -d 'What a program reads on its stdin.'
complete -c opsq -n '__opsq_at "spark submit"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Strategic metadata; repeatable.'
complete -c opsq -n '__opsq_at "spark submit"' -l title -x -d 'A line for people, which lists and progress show.'
complete -c opsq -n '__opsq_at "spark submit"' -l priority -x -d 'Higher comes first under CustomPriority.'
complete -c opsq -n '__opsq_at "spark submit"' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at "spark submit"' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at "spark submit"' -l on-dead -x -a 'fail keep' -d 'A dead chunk fails the submission, or the rest continues.'
complete -c opsq -n '__opsq_at "spark submit"' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at "spark submit"' -l weight -x -d 'Set the weight in Fair of the value that this submission has of a key.'
complete -c opsq -n '__opsq_at "spark submit"' -l delay -x -d 'Delay the first chunk by this long.'
complete -c opsq -n '__opsq_at "spark submit"' -l at -x -d 'Start at 2025-01-31T08:00, local time, or …Z, or @SECONDS.'
complete -c opsq -n '__opsq_at "spark submit"' -l after -x -d 'Wait until this submission is completed (ID:ended: has ended), or all with this metadata have ended.'
complete -c opsq -n '__opsq_at "spark submit"' -l on-failed-dependency -x -a 'cancel run keep' -d 'If one of --after ends otherwise: be cancelled, run nevertheless, or wait until it is requeued.'
complete -c opsq -n '__opsq_at "spark submit"' -l expires -x -d 'Expire if unfinished by then.'
complete -c opsq -n '__opsq_at "spark submit"' -l idempotency-key -x -d 'The same rows under this key are one submission, as long as it exists.'
complete -c opsq -n '__opsq_at "spark submit"' -l reservation -x -d 'How long a consumer may keep a chunk without a heartbeat, at least 0.1s.'
complete -c opsq -n '__opsq_at "spark submit"' -l master -x -d 'Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.'
complete -c opsq -n '__opsq_at "spark submit"' -l conf -x -a '(__opsq_pairs)' -d 'A setting of Spark; repeatable.'
complete -c opsq -n '__opsq_at "spark submit"' -l spark-logs -d 'Show the whole log of Spark on stderr.'

# opsq spark consume
complete -c opsq -n '__opsq_at "spark consume"' -a '(__opsq_command)'
complete -c opsq -n '__opsq_at "spark consume"' -s j -l jobs -x -d 'Concurrent programs in each task.'
complete -c opsq -n '__opsq_at "spark consume"' -l each -d 'Run once per record of the chunk, which replaces {} or comes last.'
complete -c opsq -n '__opsq_at "spark consume"' -l args -x -d 'Run once per up to N records, which are passed as arguments, as xargs does.'
complete -c opsq -n '__opsq_at "spark consume"' -l server -x -a 'frames records' -d 'Start one program per slot and feed it chunk after chunk, as frames or as records.'
complete -c opsq -n '__opsq_at "spark consume"' -l grace -x -d 'How long programs may continue after a signal.'
complete -c opsq -n '__opsq_at "spark consume"' -l max-runtime -x -d 'End a program that runs longer than this; its chunk fails.'
complete -c opsq -n '__opsq_at "spark consume"' -l max-result -x -d 'End a program that writes a longer result than this; its chunk fails.'
complete -c opsq -n '__opsq_at "spark consume"' -l on-lost -x -a 'stop finish' -d 'What happens to a program whose reservation was lost: end it, or let it finish.'
complete -c opsq -n '__opsq_at "spark consume"' -l complete-on -x -d 'Exit statuses that complete the chunk, such as 0,3.'
complete -c opsq -n '__opsq_at "spark consume"' -l retry-on -x -d 'Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.'
complete -c opsq -n '__opsq_at "spark consume"' -l bury-on -x -d 'Likewise, after which the chunk is dead at once; `other`: all that are not listed.'
complete -c opsq -n '__opsq_at "spark consume"' -l log-dir -x -a '(__fish_complete_directories)' -d 'Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.'
complete -c opsq -n '__opsq_at "spark consume"' -l log-failed -d 'Keep only the logs of attempts that did not complete.'
complete -c opsq -n '__opsq_at "spark consume"' -l progress -d 'Report progress every 30 s where stderr is not a terminal.'
complete -c opsq -n '__opsq_at "spark consume"' -l clean-env -d 'Give programs only PATH and the variables about the chunk as environment.'
complete -c opsq -n '__opsq_at "spark consume"' -s d -l delimiter -x -d 'What ends a record, with escapes.'
complete -c opsq -n '__opsq_at "spark consume"' -s 0 -l null -d 'A NUL byte ends a record.'
complete -c opsq -n '__opsq_at "spark consume"' -l master -x -d 'Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.'
complete -c opsq -n '__opsq_at "spark consume"' -l conf -x -a '(__opsq_pairs)' -d 'A setting of Spark; repeatable.'
complete -c opsq -n '__opsq_at "spark consume"' -l spark-logs -d 'Show the whole log of Spark on stderr.'
complete -c opsq -n '__opsq_at "spark consume"' -s s -l strategy -x -a '(__opsq_ask strategies)' -d 'Which chunks come first; see `opsq explain`.'
complete -c opsq -n '__opsq_at "spark consume"' -l submission -x -d 'Take chunks of this submission only, in the order of --strategy.'
complete -c opsq -n '__opsq_at "spark consume"' -s t -l tasks -x -d 'Consumers on the executors.'
complete -c opsq -n '__opsq_at "spark consume"' -l deadline -x -d 'Start no chunk after this long; end when running programs have ended.'
complete -c opsq -n '__opsq_at "spark consume"' -l until-idle -d 'End as soon as no chunk can be reserved, not only when none can come any more.'

# opsq spark results
complete -c opsq -n '__opsq_at "spark results"' -s o -l output -x -a '(__fish_complete_directories)' -d 'The folder to write to, with one file per partition.'
complete -c opsq -n '__opsq_at "spark results"' -l output-format -x -d 'parquet, csv, json, …; by default from the name of --output, else parquet.'
complete -c opsq -n '__opsq_at "spark results"' -l output-option -x -a '(__opsq_pairs)' -d 'An option of that writer, such as header=true.'
complete -c opsq -n '__opsq_at "spark results"' -l overwrite -d 'Replace an existing output.'
complete -c opsq -n '__opsq_at "spark results"' -l files -x -d 'Write at most this many files; they keep the order of the rows.'
complete -c opsq -n '__opsq_at "spark results"' -l result-format -x -a 'parquet arrow jsonl csv text binary' -d 'The format of results; by default detected, else that of the chunks.'
complete -c opsq -n '__opsq_at "spark results"' -l result-schema -x -d 'The columns of results; same: those of the chunks; by default from the results and the chunks.'
complete -c opsq -n '__opsq_at "spark results"' -l skip-dead -d 'Leave out the chunks that have no result.'
complete -c opsq -n '__opsq_at "spark results"' -l master -x -d 'Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.'
complete -c opsq -n '__opsq_at "spark results"' -l conf -x -a '(__opsq_pairs)' -d 'A setting of Spark; repeatable.'
complete -c opsq -n '__opsq_at "spark results"' -l spark-logs -d 'Show the whole log of Spark on stderr.'

# opsq spark run
complete -c opsq -n '__opsq_at "spark run"' -F
complete -c opsq -n '__opsq_at "spark run"' -a '(__opsq_command)'
complete -c opsq -n '__opsq_at "spark run"' -l format -x -d 'The format of the inputs: parquet, csv, json, …; by default from their names.'
complete -c opsq -n '__opsq_at "spark run"' -l option -x -a '(__opsq_pairs)' -d 'An option of that reader, such as header=true.'
complete -c opsq -n '__opsq_at "spark run"' -l schema -x -d 'The columns of the inputs, such as \'id BIGINT, text STRING\'.'
complete -c opsq -n '__opsq_at "spark run"' -l select -x -d 'Only this column or SQL expression; repeatable.'
complete -c opsq -n '__opsq_at "spark run"' -l where -x -d 'Only rows for which this SQL condition holds.'
complete -c opsq -n '__opsq_at "spark run"' -s n -l rows-per-chunk -x -d 'Rows per chunk; the last chunk of a partition has fewer.'
complete -c opsq -n '__opsq_at "spark run"' -s b -l bytes-per-chunk -x -d 'Approximate bytes per chunk.'
complete -c opsq -n '__opsq_at "spark run"' -l chunk-format -x -a 'jsonl csv text parquet arrow' -d 'What a program reads on its stdin.'
complete -c opsq -n '__opsq_at "spark run"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Strategic metadata; repeatable.'
complete -c opsq -n '__opsq_at "spark run"' -l title -x -d 'A line for people, which lists and progress show.'
complete -c opsq -n '__opsq_at "spark run"' -l priority -x -d 'Higher comes first under CustomPriority.'
complete -c opsq -n '__opsq_at "spark run"' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at "spark run"' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at "spark run"' -l on-dead -x -a 'fail keep' -d 'A dead chunk fails the submission, or the rest continues.'
complete -c opsq -n '__opsq_at "spark run"' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at "spark run"' -l weight -x -d 'Set the weight in Fair of the value that this submission has of a key.'
complete -c opsq -n '__opsq_at "spark run"' -l delay -x -d 'Delay the first chunk by this long.'
complete -c opsq -n '__opsq_at "spark run"' -l at -x -d 'Start at 2025-01-31T08:00, local time, or …Z, or @SECONDS.'
complete -c opsq -n '__opsq_at "spark run"' -l after -x -d 'Wait until this submission is completed (ID:ended: has ended), or all with this metadata have ended.'
complete -c opsq -n '__opsq_at "spark run"' -l on-failed-dependency -x -a 'cancel run keep' -d 'If one of --after ends otherwise: be cancelled, run nevertheless, or wait until it is requeued.'
complete -c opsq -n '__opsq_at "spark run"' -l expires -x -d 'Expire if unfinished by then.'
complete -c opsq -n '__opsq_at "spark run"' -l idempotency-key -x -d 'The same rows under this key are one submission, as long as it exists.'
complete -c opsq -n '__opsq_at "spark run"' -l reservation -x -d 'How long a consumer may keep a chunk without a heartbeat, at least 0.1s.'
complete -c opsq -n '__opsq_at "spark run"' -s j -l jobs -x -d 'Concurrent programs in each task.'
complete -c opsq -n '__opsq_at "spark run"' -l each -d 'Run once per record of the chunk, which replaces {} or comes last.'
complete -c opsq -n '__opsq_at "spark run"' -l args -x -d 'Run once per up to N records, which are passed as arguments, as xargs does.'
complete -c opsq -n '__opsq_at "spark run"' -l server -x -a 'frames records' -d 'Start one program per slot and feed it chunk after chunk, as frames or as records.'
complete -c opsq -n '__opsq_at "spark run"' -l grace -x -d 'How long programs may continue after a signal.'
complete -c opsq -n '__opsq_at "spark run"' -l max-runtime -x -d 'End a program that runs longer than this; its chunk fails.'
complete -c opsq -n '__opsq_at "spark run"' -l max-result -x -d 'End a program that writes a longer result than this; its chunk fails.'
complete -c opsq -n '__opsq_at "spark run"' -l on-lost -x -a 'stop finish' -d 'What happens to a program whose reservation was lost: end it, or let it finish.'
complete -c opsq -n '__opsq_at "spark run"' -l complete-on -x -d 'Exit statuses that complete the chunk, such as 0,3.'
complete -c opsq -n '__opsq_at "spark run"' -l retry-on -x -d 'Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried.'
complete -c opsq -n '__opsq_at "spark run"' -l bury-on -x -d 'Likewise, after which the chunk is dead at once; `other`: all that are not listed.'
complete -c opsq -n '__opsq_at "spark run"' -l log-dir -x -a '(__fish_complete_directories)' -d 'Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.'
complete -c opsq -n '__opsq_at "spark run"' -l log-failed -d 'Keep only the logs of attempts that did not complete.'
complete -c opsq -n '__opsq_at "spark run"' -l progress -d 'Report progress every 30 s where stderr is not a terminal.'
complete -c opsq -n '__opsq_at "spark run"' -l clean-env -d 'Give programs only PATH and the variables about the chunk as environment.'
complete -c opsq -n '__opsq_at "spark run"' -s o -l output -x -a '(__fish_complete_directories)' -d 'The folder to write to, with one file per partition.'
complete -c opsq -n '__opsq_at "spark run"' -l output-format -x -d 'parquet, csv, json, …; by default from the name of --output, else parquet.'
complete -c opsq -n '__opsq_at "spark run"' -l output-option -x -a '(__opsq_pairs)' -d 'An option of that writer, such as header=true.'
complete -c opsq -n '__opsq_at "spark run"' -l overwrite -d 'Replace an existing output.'
complete -c opsq -n '__opsq_at "spark run"' -l files -x -d 'Write at most this many files; they keep the order of the rows.'
complete -c opsq -n '__opsq_at "spark run"' -l result-format -x -a 'parquet arrow jsonl csv text binary' -d 'The format of results; by default detected, else that of the chunks.'
complete -c opsq -n '__opsq_at "spark run"' -l result-schema -x -d 'The columns of results; same: those of the chunks; by default from the results and the chunks.'
complete -c opsq -n '__opsq_at "spark run"' -l skip-dead -d 'Leave out the chunks that have no result.'
complete -c opsq -n '__opsq_at "spark run"' -l master -x -d 'Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.'
complete -c opsq -n '__opsq_at "spark run"' -l conf -x -a '(__opsq_pairs)' -d 'A setting of Spark; repeatable.'
complete -c opsq -n '__opsq_at "spark run"' -l spark-logs -d 'Show the whole log of Spark on stderr.'
complete -c opsq -n '__opsq_at "spark run"' -s s -l strategy -x -a '(__opsq_ask strategies)' -d 'Which chunks come first; see `opsq explain`.'
complete -c opsq -n '__opsq_at "spark run"' -s t -l tasks -x -d 'Consumers on the executors.'
complete -c opsq -n '__opsq_at "spark run"' -l deadline -x -d 'Start no chunk after this long; end when running programs have ended.'
complete -c opsq -n '__opsq_at "spark run"' -l keep -d 'Keep the submission and its content in the queue after success.'

# opsq spark report
complete -c opsq -n '__opsq_at "spark report"' -l by -x -a '(__opsq_ask keys)' -d 'Group by the values of this metadata key, or by `submission`.'
complete -c opsq -n '__opsq_at "spark report"' -l since -x -d 'Only since this time; a duration, such as 2h, counts back from now.'
complete -c opsq -n '__opsq_at "spark report"' -l until -x -d 'Only before this time; a duration as with --since.'
complete -c opsq -n '__opsq_at "spark report"' -l from -x -a '(__fish_complete_directories)' -d 'Read this folder of `opsq history export --format parquet`, not the queue.'
complete -c opsq -n '__opsq_at "spark report"' -l step -x -d 'The length of a window of time; by default at most 60 cover all.'
complete -c opsq -n '__opsq_at "spark report"' -l html -r -F -d 'Write a page with plots as well, in one file.'
complete -c opsq -n '__opsq_at "spark report"' -s n -l limit -x -d 'How many values and consumers to show, largest first.'
complete -c opsq -n '__opsq_at "spark report"' -l tables -d 'Print tables even if stdout is not a terminal, instead of tab-separated lines.'
complete -c opsq -n '__opsq_at "spark report"' -l master -x -d 'Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.'
complete -c opsq -n '__opsq_at "spark report"' -l conf -x -a '(__opsq_pairs)' -d 'A setting of Spark; repeatable.'
complete -c opsq -n '__opsq_at "spark report"' -l spark-logs -d 'Show the whole log of Spark on stderr.'

# opsq history list
complete -c opsq -n '__opsq_at "history list"' -l event -x -a 'completed failed lost dead requeued dropped cancelled expired' -d 'Only these, repeatable: completed, failed, lost, dead, requeued, dropped, cancelled, expired.'
complete -c opsq -n '__opsq_at "history list"' -l consumer -x -d 'Only of consumers whose name starts with this.'
complete -c opsq -n '__opsq_at "history list"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at "history list"' -l reason -x -d 'Only with this text in the reason, ignoring case.'
complete -c opsq -n '__opsq_at "history list"' -l exit-status -x -d 'Only after this exit status of the program (repeatable; or one of --signal).'
complete -c opsq -n '__opsq_at "history list"' -l signal -x -d 'Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).'
complete -c opsq -n '__opsq_at "history list"' -l since -x -d 'Only since this time; a duration, such as 2h, counts back from now.'
complete -c opsq -n '__opsq_at "history list"' -l until -x -d 'Only before this time; a duration as with --since.'
complete -c opsq -n '__opsq_at "history list"' -s n -l limit -x -d 'List at most N rows; by default 100 on a terminal, and all elsewhere.'
complete -c opsq -n '__opsq_at "history list"' -l oldest-first -d 'Start with the oldest instead of the newest.'
complete -c opsq -n '__opsq_at "history list"' -l after -x -d 'Continue after this row, in the order shown (paging).'

# opsq history export
complete -c opsq -n '__opsq_at "history export"' -l event -x -a 'completed failed lost dead requeued dropped cancelled expired' -d 'Only these, repeatable: completed, failed, lost, dead, requeued, dropped, cancelled, expired.'
complete -c opsq -n '__opsq_at "history export"' -l consumer -x -d 'Only of consumers whose name starts with this.'
complete -c opsq -n '__opsq_at "history export"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Only of submissions with this metadata; repeatable.'
complete -c opsq -n '__opsq_at "history export"' -l reason -x -d 'Only with this text in the reason, ignoring case.'
complete -c opsq -n '__opsq_at "history export"' -l exit-status -x -d 'Only after this exit status of the program (repeatable; or one of --signal).'
complete -c opsq -n '__opsq_at "history export"' -l signal -x -d 'Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).'
complete -c opsq -n '__opsq_at "history export"' -l since -x -d 'Only since this time; a duration, such as 2h, counts back from now.'
complete -c opsq -n '__opsq_at "history export"' -l until -x -d 'Only before this time; a duration as with --since.'
complete -c opsq -n '__opsq_at "history export"' -s o -l output -x -d 'A file, an existing folder, or - for stdout.'
complete -c opsq -n '__opsq_at "history export"' -l format -x -a 'jsonl csv parquet' -d 'JSON lines, CSV or Parquet; by default from the file name, else JSON lines.'
complete -c opsq -n '__opsq_at "history export"' -l rotate -x -d 'Start a new file in the folder after this number of rows.'
complete -c opsq -n '__opsq_at "history export"' -l after -x -d 'Only rows after this one.'
complete -c opsq -n '__opsq_at "history export"' -l after-last -d 'Only rows after the last one in the folder\'s files.'

# opsq history prune
complete -c opsq -n '__opsq_at "history prune"' -l older-than -x -d 'Delete rows older than this.'
complete -c opsq -n '__opsq_at "history prune"' -l keep -x -d 'Keep only the newest N rows.'

# opsq events
complete -c opsq -n '__opsq_at events' -s f -l follow -d 'Go on with new events as they come, also when the daemon is restarted.'
complete -c opsq -n '__opsq_at events' -l since -x -d 'Only events behind this one.'
complete -c opsq -n '__opsq_at events' -l cursor-file -r -F -d 'Go on behind the cursor in this file, and keep it up to date with what was printed.'
complete -c opsq -n '__opsq_at events' -l kind -x -a 'completed failed cancelled expired dead paused resumed fired missed' -d 'Only these kinds: completed, failed, cancelled, expired, dead, paused, resumed, fired, missed.'
complete -c opsq -n '__opsq_at events' -s n -l limit -x -d 'End after this number of events.'

# opsq notify run
complete -c opsq -n '__opsq_at "notify run"' -l once -d 'End when all that has happened by now was tried; the rest waits for the next run.'
complete -c opsq -n '__opsq_at "notify run"' -l since -x -d 'Where to begin when it runs for the first time.'
complete -c opsq -n '__opsq_at "notify run"' -s j -l jobs -x -d 'Deliver up to this number at once to each target.'
complete -c opsq -n '__opsq_at "notify run"' -l time-limit -x -d 'Kill a program that takes longer.'
complete -c opsq -n '__opsq_at "notify run"' -l attempts -x -d 'Give up after this number of attempts.'
complete -c opsq -n '__opsq_at "notify run"' -l backoff -x -d 'Delay after the first failed attempt; then five times as long each time.'

# opsq notify dead

# opsq notify retry
complete -c opsq -n '__opsq_at "notify retry"' -l all -d 'All of them.'

# opsq notify drop
complete -c opsq -n '__opsq_at "notify drop"' -l all -d 'All of them.'

# opsq explain
complete -c opsq -n '__opsq_at explain' -k -a '(__opsq_ask explained)'
complete -c opsq -n '__opsq_at explain' -s a -l analyze -d 'Try the strategy out on the queue as it is; nothing is reserved.'

# opsq pause
complete -c opsq -n '__opsq_at pause' -k -a '(__opsq_pairs)'
complete -c opsq -n '__opsq_at pause' -l all -d 'Every submission.'
complete -c opsq -n '__opsq_at pause' -l operator -d 'As an operator: only `resume --operator` ends such a pause.'

# opsq resume
complete -c opsq -n '__opsq_at resume' -k -a '(__opsq_pairs)'
complete -c opsq -n '__opsq_at resume' -l all -d 'Every submission.'
complete -c opsq -n '__opsq_at resume' -l operator -d 'As an operator: only `resume --operator` ends such a pause.'

# opsq limit
complete -c opsq -n '__opsq_at limit' -k -a '(__opsq_ask keys)'
complete -c opsq -n '__opsq_at limit' -s c -l concurrency -x -d 'Maximum number of concurrent chunks.'
complete -c opsq -n '__opsq_at limit' -s r -l rate -x -d 'Chunks started per time: 10/s, 100/m, 5/15m.'
complete -c opsq -n '__opsq_at limit' -l burst -x -d 'With --rate: chunks that may start at once after idling.'
complete -c opsq -n '__opsq_at limit' -l split -d 'Over several shards: divide N and the rate among them.'
complete -c opsq -n '__opsq_at limit' -l lift -d 'Remove the limit.'

# opsq limits

# opsq weight
complete -c opsq -n '__opsq_at weight' -k -a '(__opsq_pairs)'

# opsq audit
complete -c opsq -n '__opsq_at audit' -s n -l limit -x -d 'List at most N acts; by default 100 on a terminal, and all elsewhere.'

# opsq schedule list

# opsq schedule add
complete -c opsq -n '__opsq_at "schedule add"' -F
complete -c opsq -n '__opsq_at "schedule add"' -l tz -x -d 'The time zone of WHEN, such as Europe/Amsterdam.'
complete -c opsq -n '__opsq_at "schedule add"' -l jitter -x -d 'Delay each submission by up to this long.'
complete -c opsq -n '__opsq_at "schedule add"' -l overlap -x -a 'skip queue allow cancel' -d 'If the previous submission is unfinished: skip this one (default), queue it, allow both, or cancel that.'
complete -c opsq -n '__opsq_at "schedule add"' -l catch-up -x -d 'What to catch up on after downtime: none, last (default) or all; with =D nothing older than that.'
complete -c opsq -n '__opsq_at "schedule add"' -l from -x -d 'Plan nothing before this instant.'
complete -c opsq -n '__opsq_at "schedule add"' -l until -x -d 'Plan nothing from this instant on.'
complete -c opsq -n '__opsq_at "schedule add"' -l pause-on-failure -d 'Pause the schedule if a submission fails; =no undoes this.'
complete -c opsq -n '__opsq_at "schedule add"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Strategic metadata; repeatable.'
complete -c opsq -n '__opsq_at "schedule add"' -l title -x -d 'A line for people, which lists and progress show.'
complete -c opsq -n '__opsq_at "schedule add"' -l priority -x -d 'Higher comes first under CustomPriority.'
complete -c opsq -n '__opsq_at "schedule add"' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at "schedule add"' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at "schedule add"' -l on-dead -x -a 'fail keep' -d 'A dead chunk fails the submission, or the rest continues.'
complete -c opsq -n '__opsq_at "schedule add"' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at "schedule add"' -l weight -x -d 'Set the weight in Fair of the value that this submission has of a key.'
complete -c opsq -n '__opsq_at "schedule add"' -l delay -x -d 'Delay the first chunk by this long.'
complete -c opsq -n '__opsq_at "schedule add"' -l expires -x -d 'Expire if unfinished by then.'
complete -c opsq -n '__opsq_at "schedule add"' -l reservation -x -d 'How long a consumer may keep a chunk without a heartbeat, at least 0.1s.'

# opsq schedule edit
complete -c opsq -n '__opsq_at "schedule edit"' -l when -x -d 'A new time, as for `opsq schedule add`.'
complete -c opsq -n '__opsq_at "schedule edit"' -l content -r -F -d 'New content for the chunk.'
complete -c opsq -n '__opsq_at "schedule edit"' -l tz -x -d 'The time zone of WHEN, such as Europe/Amsterdam.'
complete -c opsq -n '__opsq_at "schedule edit"' -l jitter -x -d 'Delay each submission by up to this long.'
complete -c opsq -n '__opsq_at "schedule edit"' -l overlap -x -a 'skip queue allow cancel' -d 'If the previous submission is unfinished: skip this one (default), queue it, allow both, or cancel that.'
complete -c opsq -n '__opsq_at "schedule edit"' -l catch-up -x -d 'What to catch up on after downtime: none, last (default) or all; with =D nothing older than that.'
complete -c opsq -n '__opsq_at "schedule edit"' -l from -x -d 'Plan nothing before this instant.'
complete -c opsq -n '__opsq_at "schedule edit"' -l until -x -d 'Plan nothing from this instant on.'
complete -c opsq -n '__opsq_at "schedule edit"' -l pause-on-failure -d 'Pause the schedule if a submission fails; =no undoes this.'
complete -c opsq -n '__opsq_at "schedule edit"' -s m -l metadata -x -a '(__opsq_pairs)' -d 'Strategic metadata; repeatable.'
complete -c opsq -n '__opsq_at "schedule edit"' -l title -x -d 'A line for people, which lists and progress show.'
complete -c opsq -n '__opsq_at "schedule edit"' -l priority -x -d 'Higher comes first under CustomPriority.'
complete -c opsq -n '__opsq_at "schedule edit"' -l max-attempts -x -d 'Failures until a chunk is dead.'
complete -c opsq -n '__opsq_at "schedule edit"' -l max-lost -x -d 'Lost consumers until a chunk is dead.'
complete -c opsq -n '__opsq_at "schedule edit"' -l on-dead -x -a 'fail keep' -d 'A dead chunk fails the submission, or the rest continues.'
complete -c opsq -n '__opsq_at "schedule edit"' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at "schedule edit"' -l weight -x -d 'Set the weight in Fair of the value that this submission has of a key.'
complete -c opsq -n '__opsq_at "schedule edit"' -l delay -x -d 'Delay the first chunk by this long.'
complete -c opsq -n '__opsq_at "schedule edit"' -l expires -x -d 'Expire if unfinished by then.'
complete -c opsq -n '__opsq_at "schedule edit"' -l reservation -x -d 'How long a consumer may keep a chunk without a heartbeat, at least 0.1s.'

# opsq schedule show
complete -c opsq -n '__opsq_at "schedule show"' -l next -x -d 'How many of the next planned instants to show.'

# opsq schedule pause
complete -c opsq -n '__opsq_at "schedule pause"' -l note -x -d 'Why; shown by `opsq schedule show`.'

# opsq schedule resume

# opsq schedule trigger

# opsq schedule backfill

# opsq schedule rm

# opsq queue list

# opsq queue create
complete -c opsq -n '__opsq_at "queue create"' -s s -l strategy -x -a '(__opsq_ask strategies)' -d 'Which records come first.'
complete -c opsq -n '__opsq_at "queue create"' -l lease -x -d 'How long a consumer may take before its record is offered again.'
complete -c opsq -n '__opsq_at "queue create"' -l max-attempts -x -d 'Attempts until a record is dead.'
complete -c opsq -n '__opsq_at "queue create"' -l backoff -x -d 'Delays between attempts, such as 1s,2,5m.'
complete -c opsq -n '__opsq_at "queue create"' -l expires -x -d 'Give a record up that is unfinished this long after it came.'
complete -c opsq -n '__opsq_at "queue create"' -l limit -x -d 'Refuse records while N are unfinished.'

# opsq queue show

# opsq queue rm

# opsq token list

# opsq token create
complete -c opsq -n '__opsq_at "token create"' -l role -x -d 'What the token permits: operator, producer, consumer, read-only.'

# opsq token revoke

# opsq config

# opsq doctor
complete -c opsq -n '__opsq_at doctor' -l cron -d 'Look instead at what a job of cron would lack, compared with this shell.'

# opsq check

# opsq backup
complete -c opsq -n '__opsq_at backup' -F

# opsq restore
complete -c opsq -n '__opsq_at restore' -l force -d 'Take over at once, even from a daemon that still serves: see opsq-restore(1).'

# opsq vacuum

# opsq demo
complete -c opsq -n '__opsq_at demo' -l consumers -x -d 'How many consumers work at the same time, up to 64.'
complete -c opsq -n '__opsq_at demo' -l keep -d 'Keep the folder for inspection.'
complete -c opsq -n '__opsq_at demo' -l spark -d 'Show the same with PySpark: DataFrames, and executors as consumers.'

# opsq examples
complete -c opsq -n '__opsq_at examples' -k -a '(__opsq_ask examples)'
complete -c opsq -n '__opsq_at examples' -s o -l output -x -a '(__fish_complete_directories)' -d 'Copy to this folder, in place of printing.'

# opsq completion
complete -c opsq -n '__opsq_at completion' -k -a 'bash zsh fish'
